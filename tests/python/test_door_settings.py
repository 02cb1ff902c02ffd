"""Goal: an option of the code wins over the environment, and the environment over a door's default,
whichever the door.

Method: each door is opened with LIBCKPT_DISABLE=1 and disable=False; torchtitan's configuration is
given nothing, where the environment has what it would have.
"""

import types

import pytest

import libckpt
from libckpt.core import _settings

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("given", "configured", "is_so"), [
    (None, "1", True), (None, "", False), (False, "1", False), (True, "0", True), ("0", "1", False),
])  # fmt: skip
def test_the_code_says_whether_it_is_disabled_before_the_environment(
    monkeypatch, given, configured, is_so
):
    monkeypatch.setenv("LIBCKPT_DISABLE", configured)
    assert _settings.is_disabled({"disable": given}) == is_so


def of_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    import libckpt.accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = libckpt.accelerate.attach(accelerator, job="job", disable=False)
    return state._memory and state._memory.session


def of_lightning(tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    import libckpt.lightning

    callback, seen = libckpt.lightning.Callback(job="job", disable=False), []

    class Look(pl.Callback):
        def on_train_start(self, *_):
            seen.append(callback.session)

    class Module(pl.LightningModule):
        def training_step(self, batch, _):
            pass

        def configure_optimizers(self):
            pass

    trainer = pl.Trainer(
        max_steps=1, default_root_dir=tmp_path, logger=False, accelerator="cpu", devices=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        limit_train_batches=1, callbacks=[Look(), callback],
    )  # fmt: skip
    trainer.fit(Module(), torch.ones(2, 1))
    return seen[0]


@pytest.mark.parametrize("opened", [of_accelerate, of_lightning])
def test_a_door_that_is_told_so_opens_although_the_environment_disables(
    runtime, tmp_path, monkeypatch, opened
):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    session = opened(tmp_path)
    assert isinstance(session, libckpt.Session)
    session.abandon()


@pytest.mark.parametrize(("given", "used"), [
    ({}, (None, None)), ({"save_mem_interval": 3, "replicas": 1}, (3, 1)),
])  # fmt: skip
def test_torchtitans_configuration_leaves_to_the_environment_what_it_does_not_say(
    tmp_path, monkeypatch, given, used
):
    titan = pytest.importorskip("libckpt.torchtitan", exc_type=ImportError)
    manager, seen = titan.CheckpointManager, []

    def init(job, **options):
        seen.append((options["save_mem_interval"], options["replicas"]))
        return types.SimpleNamespace(guard=lambda *_: None)

    monkeypatch.setattr(titan, "init", init)
    made = manager.__new__(manager)
    made.folder, made.states = str(tmp_path), {titan.OPTIMIZER: []}
    made._open(manager.Config(enable=True, **given))
    assert seen == [used]


@pytest.mark.parametrize("name", ["save_mem_interval", "replicas"])
def test_torchtitans_configuration_refuses_none_at_all(name):
    titan = pytest.importorskip("libckpt.torchtitan", exc_type=ImportError)
    with pytest.raises(ValueError, match="must be at least 1"):
        titan.CheckpointManager.Config(**{name: 0})
