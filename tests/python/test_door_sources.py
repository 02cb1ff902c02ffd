"""Goal: each door takes a step from memory alone or from storage alone where that is asked for, and
does not begin anew over what the other place has.

Method: jobs with an older step on storage and a newer one in memory, one process each; what was
loaded is looked at, and the folders of the frameworks are among storage. test_jax_sources.py and
test_levanter.py have the same of JAX and Levanter.
"""

import re

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from test_accelerate import leave, prepared, step  # noqa: E402, F401
from test_dcp import alone, loaded  # noqa: E402, F401
from test_deepspeed import jobs, states  # noqa: E402, F401
from test_megatron import job as megatron_job  # noqa: E402, F401
from test_ranks import said  # noqa: E402

import libckpt  # noqa: E402


# --- DCP


def test_an_id_of_dcp_may_say_from_which_place(alone, runtime, tmp_path):  # noqa: F811
    storage = alone("ckpt://places", dir=tmp_path / "run", save_storage_interval=2)
    session = storage.session()
    for number, level in ((2, "durable"), (3, "committed")):
        state = {"value": torch.full((5,), float(number)), "step": number}
        dcp.save(state, checkpoint_id=f"ckpt://places/step-{number}", storage_writer=storage)
        session.wait(number, level)

    def load(word):
        found = loaded(storage, f"ckpt://places/{word}", value=torch.zeros(5), step=0)
        assert found["value"].tolist() == [found["step"]] * 5
        return found["step"]

    assert load("latest?source=memory") == 3
    assert storage.find("ckpt://places/latest?source=storage") == 2
    assert load("latest?source=storage") == 2  # The step that was found; the newer one is given up.
    assert load("step-2?source=storage") == 2
    assert load("latest") == 2


def test_a_source_of_dcp_that_makes_no_sense_is_refused(alone, runtime):  # noqa: F811
    storage = alone()
    with pytest.raises(libckpt.InvalidArgument, match="source 'disk'"):
        storage.find("ckpt://places/latest?source=disk")
    with pytest.raises(libckpt.InvalidArgument, match="checkpoint_id"):
        storage.find("ckpt://places/latest?from=memory")
    with pytest.raises(dcp.api.CheckpointException, match="a source is for loads"):
        dcp.save({"a": 1}, checkpoint_id="ckpt://places/step-1?source=memory",
                 storage_writer=storage)  # fmt: skip


# --- accelerate, whose folders are storage


def save_a_folder_and_a_newer_step(accelerator, state):
    step(accelerator)
    assert state.capture(1)
    accelerator.save_state()
    state.settle()
    of_folder = accelerator._models[0].weight.detach().clone()
    step(accelerator)
    assert state.capture(2)
    state._memory.session.wait(2, "committed")
    return of_folder, accelerator._models[0].weight.detach().clone()


@pytest.mark.parametrize("has_dir", [False, True])
def test_accelerate_resumes_from_the_place_that_is_named(prepared, tmp_path, has_dir):  # noqa: F811
    options = {"dir": tmp_path / "own", "save_storage_interval": 100} if has_dir else {}
    accelerator, state = prepared(**options)
    of_folder, of_memory = save_a_folder_and_a_newer_step(accelerator, state)
    leave(state)
    accelerator, state = prepared(**options)
    assert state.resume(source="memory") == 2
    assert torch.equal(accelerator._models[0].weight, of_memory)
    assert state.resume(source="storage") == 1
    assert torch.equal(accelerator._models[0].weight, of_folder)
    with pytest.raises(libckpt.InvalidArgument, match="source 'disk'"):
        state.resume(source="disk")


def test_accelerate_does_not_begin_anew_where_the_other_place_has_something(prepared):  # noqa: F811
    accelerator, state = prepared()
    assert state.resume(source="memory") == state.resume(source="storage") == 0  # Its first life.
    step(accelerator)
    assert state.capture(1)
    state._memory.session.wait(1, "committed")
    leave(state)
    accelerator, state = prepared()
    with pytest.raises(libckpt.Unavailable, match="storage alone.* step 1 .*own memory"):
        state.resume(source="storage")
    assert state.resume(source="memory") == 1
    accelerator.save_state()
    state.settle()
    state._memory.session.start_fresh()
    state._memory.session.close()  # Memory has nothing from here on.
    leave(state)
    _, state = prepared()
    with pytest.raises(libckpt.Unavailable, match="memory alone: it has no step; .*checkpoint_0"):
        state.resume(source="memory")


# --- Lightning, whose files are storage


def test_lightning_resumes_from_the_place_that_is_named(runtime, tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    from libckpt import lightning

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight, self.began = torch.nn.Parameter(torch.ones(1)), None

        def on_train_start(self):
            self.began = self.global_step

        def training_step(self, batch, _):
            if self.global_step == self.stops_at:
                raise RuntimeError("the job dies here")
            return (self.weight * batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def began(place, stops_at=-1):
        module = Module()
        module.stops_at = stops_at
        files = pl.callbacks.ModelCheckpoint(tmp_path / "files", every_n_train_steps=2,
                                             save_top_k=-1)  # fmt: skip
        trainer = pl.Trainer(
            max_steps=4, default_root_dir=tmp_path, logger=False, accelerator="cpu", devices=1,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[files, lightning.Callback()], plugins=[lightning.CheckpointIO()],
        )  # fmt: skip
        trainer.fit(module, torch.ones(9, 1), ckpt_path=f"{lightning.NEWEST}{place}")
        return module.began

    for place, stops_at in (("", 3), ("?source=memory", 3)):  # The second one does nothing.
        with pytest.raises(RuntimeError, match="dies here"):
            began(place, stops_at)
    with pytest.raises(libckpt.InvalidArgument, match="source 'disk'"):
        began("?source=disk")
    with pytest.raises(RuntimeError, match="dies here"):
        began("?source=memory", 3)
    assert began("?source=storage") == 2


# --- Transformers, whose folders are storage


class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return {"loss": (self.weight * x).square().mean()}


@pytest.fixture
def trains(runtime, tmp_path):
    """Trains to step 4, dying at step 3 if that is asked for; returns the step it began with."""
    transformers = pytest.importorskip("transformers")
    import libckpt.transformers

    opened = []

    class Dies(transformers.TrainerCallback):
        began = None

        def on_train_begin(self, args, state, control, **_):
            self.began = state.global_step

        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 3 and self.is_to_die:
                opened[-1]._memory.session.wait(3, "committed")
                raise RuntimeError("the job dies here")

    def train(resume, dies=False, job="job", output="output", alone=False, **options):
        options.setdefault("save_mem_interval", 3)  # So that this step finds a Slot.
        callback, dying = libckpt.transformers.Callback(job=job, **options), Dies()
        opened.append(callback)
        dying.is_to_die = dies
        settings = transformers.TrainingArguments(
            str(tmp_path / output), max_steps=4, per_device_train_batch_size=1, save_steps=2,
            report_to=[], use_cpu=True, disable_tqdm=True, save_only_model=alone,
        )  # fmt: skip
        trainer = transformers.Trainer(Weight(), settings, callbacks=[callback, dying],
                                       train_dataset=[{"x": torch.ones(1)}] * 9)  # fmt: skip
        try:
            trainer.train(resume_from_checkpoint=resume)
        except RuntimeError as error:
            if "dies here" not in str(error):
                raise
        finally:
            libckpt.core.files._publish_queue.settle(wait=True)
            if callback._memory.session is not None:
                callback._memory.session.abandon()
        return dying.began

    yield train


def test_transformers_resumes_from_the_place_that_is_named(trains):
    from libckpt.transformers import NEWEST

    assert trains(NEWEST, dies=True) == 0  # Nothing is there.
    assert trains(f"{NEWEST}?source=memory", dies=True) == 3
    with pytest.raises(libckpt.InvalidArgument, match="source 'disk'"):
        trains(f"{NEWEST}?source=disk")
    assert trains(f"{NEWEST}?source=storage", dies=True) == 2
    assert trains(True) == 3  # That life captured it, and memory is its own from there on.


def test_transformers_does_not_begin_anew_where_the_other_place_has_something(trains):
    assert trains("ckpt://newest?source=memory", dies=True) == 0
    with pytest.raises(libckpt.Unavailable, match="storage alone.* step 3 .*own memory"):
        trains("ckpt://newest?source=storage", output="elsewhere")
    with pytest.raises(libckpt.Unavailable, match="it has no step; .*checkpoint-2 is there"):
        trains("ckpt://newest?source=memory", job="another")


def test_where_memory_does_not_answer_a_warning_says_what_a_model_alone_costs(
    trains, monkeypatch, caplog
):
    from libckpt.transformers import _memory

    def silent(*_):
        raise libckpt.Unavailable("the daemon does not answer")

    assert trains(True, dies=True, alone=True) == 0
    monkeypatch.setattr(_memory.TrainerMemory, "_restored", silent)
    assert trains(True, alone=True) == 2
    said = [each.levelname for each in caplog.records if re.search(
        "checkpoint-2 has the model alone, as save_only_model says: the optimizer and the learning "
        "rate begin anew", each.getMessage())]  # fmt: skip
    assert said == ["WARNING"]
    assert "the daemon does not answer; resumes from" in caplog.text


def test_disabled_transformers_takes_the_newest_folder_for_any_source(trains):
    assert trains(True, dies=True) == 0
    assert trains("ckpt://newest?source=memory", disable=True) == 2


# --- torchtitan, whose folders are storage


def test_torchtitan_starts_from_the_place_that_is_named(runtime, tmp_path, caplog):
    titan = pytest.importorskip("libckpt.torchtitan", exc_type=ImportError)
    from test_torchtitan import LRSchedulersContainer, default_adamw

    def made(source=""):
        model, settings = torch.nn.Linear(2, 2), default_adamw(lr=0.01)
        settings.implementation = "foreach"
        optimizers = settings.build(model_parts=[model])
        config = titan.CheckpointManager.Config(
            enable=True, folder=str(tmp_path / "out"), keep_latest_k=0, interval=2, source=source
        )
        return model.weight, config.build(
            dataloader=None, model_parts=[model], optimizers=optimizers, states={}, sd_adapter=None,
            lr_schedulers=LRSchedulersContainer(optimizers, lambda step: 1.0),
        )  # fmt: skip

    weight, manager = made()
    manager.load()
    for step in (1, 2, 3):
        torch.nn.init.constant_(weight, step)
        manager.save(step)
        manager._session.wait(step, "committed")  # So that the next one finds a Slot.
    manager.close()
    for source, value in (("memory", 3), ("storage", 2)):
        weight, manager = made(source)
        assert manager.load()
        assert weight.tolist() == [[value] * 2] * 2
        manager.close()
    for wrong in ({"source": "disk"}, {"source": "memory", "load_step": 2}):
        with pytest.raises(ValueError, match="source"):
            titan.CheckpointManager.Config(**wrong)


# --- DeepSpeed and Megatron, in processes of their own


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeed_resumes_from_the_place_that_is_named(jobs, tmp_path, ranks):  # noqa: F811
    """With as many ranks as saved, and with fewer."""
    given = {"stage": 1, "dir": str(tmp_path / "dir"), "resume": {}, "attach": {
        "save_storage_interval": 2}}  # fmt: skip
    before = jobs.run_killed(2, 3, **given, end="wait")
    for source, number in (("memory", 3), ("storage", 2)):
        log = jobs.run(ranks, **{**given, "resume": {"source": source}}, steps=number)
        assert said(log, 0, "resumed") == [[str(number)]]
        assert said(log, 0, "began at") == [[str(number), states(before)[number]]]


@pytest.mark.slow
def test_megatron_loads_from_the_place_that_is_named(megatron_job, tmp_path):  # noqa: F811
    options = {"directory": str(tmp_path / "checkpoints"), "storage": 2}
    megatron_job.killed(1, "job", 3, **options)
    for source, number in (("memory", 3), ("storage", 2)):
        log = megatron_job.run(1, "job", number, load={"source": source}, **options)
        assert said(log, 0, "began at") == [[str(number)]]


def test_megatron_does_not_begin_anew_where_the_other_place_has_something(runtime, tmp_path):
    pytest.importorskip("megatron.core")
    from libckpt.megatron._easy import EasyCkpt

    easy = EasyCkpt(1, 0, 0, job="job", save_dir=str(tmp_path))
    easy.folders.newest_in = lambda _: 7
    session = easy.memory.session
    model = torch.nn.Linear(2, 2)
    objects = [model], torch.optim.SGD(model.parameters(), lr=0.1), None
    easy.memory.restore = lambda *_: (session.restore(), None) and None
    with pytest.raises(libckpt.Unavailable, match="it has no step; .*iter_0000007 is there"):
        easy.load(*objects, source="memory")
    with pytest.raises(libckpt.InvalidArgument, match="finetune"):
        easy.load(*objects, "pretrained_checkpoint", source="memory")
    easy.folders.newest_in = lambda _: None
    session.save(3, {"x": torch.ones(2)}, wait=60)
    session.wait(3, "committed")
    with pytest.raises(libckpt.Unavailable, match="storage alone.* step 3 .*own memory"):
        easy.load(*objects, source="storage")
    easy.abandon()
