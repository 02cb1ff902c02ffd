"""Goal: a Trainer of Transformers that is killed goes on as if it had not been.

Method: a tiny GPT-2 is trained with the installed Transformers, killed at random steps, resumed
from memory and from folders, and compared with an uninterrupted run of stock Transformers; what is
on storage is then resumed by stock Transformers itself.
"""

import contextlib
import importlib
import json
import logging
import os
import pickle
import random
import re
import signal
import subprocess
import threading
import time
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from libckpt.core._ranks import Ranks  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402
from libckpt.transformers._folders import Folders, problem_of  # noqa: E402
from libckpt.transformers._checkpoints import TrainerFolders  # noqa: E402
from libckpt.transformers._resuming import newest_for_all  # noqa: E402
from libckpt.transformers._weights import Weights  # noqa: E402

KILLS = [5, pytest.param(int(os.environ.get("CKPT_PYTHON_KILLS", "100")), marks=pytest.mark.slow)]
FILES = {"config.json", "generation_config.json", "model.safetensors", "optimizer.pt",
         "rng_state.pth", "scheduler.pt", "trainer_state.json", "training_args.bin"}  # fmt: skip


def run(trainer, output, kind="wrapper", **options):
    return trainer("hf.py", str(output), kind, json.dumps(options))


def results(output):
    return [line for line in output.splitlines() if line.startswith(("losses", "weights"))]


def kill_when_held(process):
    """Returns the newest step that memory had then; none: the Trainer has no memory."""
    process.wait_until_said("held ")
    process.kill()
    (step,) = re.findall(r"^held (\w+)$", process.log.read_text(), re.M)
    return None if step == "None" else int(step)


def first_step(output):
    return int(output.partition("made ")[2].split()[0])


def opens_safely(file):
    """Whether torch opens it without running what a pickle says."""
    with contextlib.suppress(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
        return True
    return False


def folders(output):
    return sorted(int(path.name.split("-")[1]) for path in output.glob("checkpoint-*"))


@pytest.fixture
def expected(trainer, tmp_path):
    """Losses and weights of stock Transformers, not interrupted."""
    return results(run(trainer, tmp_path / "stock", "stock").finish())


@pytest.mark.parametrize("kind", ["wrapper", "callback"])
def test_killed_and_resumed_from_memory_it_ends_as_if_nothing_had_been(
    trainer, tmp_path, expected, kind
):
    output = tmp_path / "output"
    for step in (8, 17, 22):
        assert kill_when_held(run(trainer, output, kind, resume=True, hold=step)) == step
    said = run(trainer, output, kind, resume=True).finish()
    assert first_step(said) == 23  # Memory is newer than the folder of step 20.
    assert results(said) == expected
    assert "from own memory" in said
    assert folders(output) == [25, 30]
    assert {path.name for path in (output / "checkpoint-30").iterdir()} == FILES
    stock = tmp_path / "stock" / "checkpoint-30"
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        assert opens_safely(output / "checkpoint-30" / name) == opens_safely(stock / name), name
    assert opens_safely(stock / "optimizer.pt")


def test_added_once_the_trainer_was_made_it_captures_and_goes_on_from_whole_folders(
    trainer, tmp_path, expected
):
    output = tmp_path / "output"
    kill_when_held(run(trainer, output, "added", resume=True, hold=14, settles=True))
    process = run(trainer, output, "added", resume=True, hold=17, settles=True)
    assert kill_when_held(process) == 17
    said = process.log.read_text()
    assert first_step(said) == 11
    assert "Transformers resumed step 10 from a folder, and memory" in said
    assert folders(output) == [10, 15]
    assert all(problem_of(output / f"checkpoint-{number}") is None for number in (10, 15))
    # A wrapper, which is asked in time, has the memory of what was added late.
    said = run(trainer, output, resume=True).finish()
    assert "from own memory" in said
    assert first_step(said) == 18
    assert results(said) == expected


def test_resumed_from_folders_without_the_memory_it_ends_the_same(
    trainer, tmp_path, expected, programs
):
    output = tmp_path / "output"
    kill_when_held(run(trainer, output, hold=17))
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60)
    said = run(trainer, output, resume=True).finish()
    assert first_step(said) == 16  # The folder was captured only, perhaps, and put in its place.
    assert results(said) == expected


def test_stock_transformers_resumes_what_is_on_storage(trainer, tmp_path, expected):
    output = tmp_path / "output"
    kill_when_held(run(trainer, output, hold=19, settles=True))
    said = run(trainer, output, "stock", resume=True).finish()
    assert first_step(said) == 16
    assert results(said) == expected
    # Memory has a step that is older than the last folder by now.
    assert "checkpoint-30, which is newer than step" in run(trainer, output, resume=True).finish()


def test_memory_in_mid_interval_keeps_what_the_next_log_adds_up(trainer, tmp_path):
    options = {"logging_steps": 7, "save_strategy": "no"}
    whole = run(trainer, tmp_path / "stock", "stock", **options).finish()
    output = tmp_path / "output"
    assert kill_when_held(run(trainer, output, hold=12, **options)) == 12
    said = run(trainer, output, resume=True, **options).finish()
    assert "from own memory" in said
    assert first_step(said) == 13
    assert results(said) == results(whole)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"save_strategy": "no"}, []),
        ({"save_strategy": "epoch"}, [24, 30]),
        pytest.param({"save_steps": 0.25}, [24, 30], marks=pytest.mark.slow),  # As an epoch.
        ({"save_total_limit": None, "save_steps": 10}, [10, 20, 30]),
        ({"save_only_model": True}, [25, 30]),
        ({"gradient_accumulation_steps": 2, "max_steps": 12}, [10, 12]),
    ],
    ids=["no", "epoch", "ratio", "all", "only the model", "accumulation"],
)
def test_folders_are_those_that_stock_transformers_keeps(trainer, tmp_path, options, kept):
    said = run(trainer, tmp_path / "output", **options).finish()
    stock = run(trainer, tmp_path / "stock", "stock", **options).finish()
    assert results(said) == results(stock)
    assert folders(tmp_path / "output") == folders(tmp_path / "stock") == kept
    for number in kept:
        ours, theirs = (tmp_path / kind / f"checkpoint-{number}" for kind in ("output", "stock"))
        assert {p.name for p in ours.iterdir()} == {p.name for p in theirs.iterdir()}


def test_the_weights_are_those_of_stock_transformers_and_written_by_the_daemon(trainer, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    run(trainer, tmp_path / "output", max_steps=5).finish()
    run(trainer, tmp_path / "stock", "stock", max_steps=5).finish()
    ours, theirs = (
        tmp_path / kind / "checkpoint-5" / "model.safetensors" for kind in ("output", "stock")
    )
    with (safetensors.safe_open(ours, "pt") as one, safetensors.safe_open(theirs, "pt") as other):
        assert one.metadata().items() >= other.metadata().items() == {("format", "pt")}
        assert "run" in one.metadata()  # So it is a member of one of our checkpoints.
        assert sorted(one.keys()) == sorted(other.keys())
        for name in other.keys():
            assert torch.equal(one.get_tensor(name), other.get_tensor(name)), name
    config = ours.parent / "config.json"
    assert ours.stat().st_mode == config.stat().st_mode  # Not the daemon's 0600.


def test_disabled_transformers_saves_by_itself_and_nothing_is_logged_of_it(
    trainer, tmp_path, monkeypatch
):
    options = {"max_steps": 6, "save_steps": 3}
    expected = run(trainer, tmp_path / "stock", "stock", **options).finish()
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    output = tmp_path / "output"
    said = run(trainer, output, resume=True, **options).finish()
    assert results(said) == results(expected)
    assert folders(output) == [3, 6]
    assert {path.name for path in (output / "checkpoint-6").iterdir()} == FILES
    assert "stock torch saves instead" not in said
    assert not (tmp_path / "runtime").exists()


def test_a_second_training_by_the_same_trainer_is_captured_from_its_first_steps(trainer, tmp_path):
    options = {"save_strategy": "no"}
    assert kill_when_held(run(trainer, tmp_path / "output", again=True, hold=5, **options)) == 5
    said = run(trainer, tmp_path / "output", resume=True, **options).finish()
    assert first_step(said) == 6


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_a_training_that_ended_well_leaves_no_memory_behind_where_its_last_step_is_in_a_folder(
    trainer, tmp_path, programs, strategy
):
    run(trainer, tmp_path / "output", max_steps=5, save_strategy=strategy).finish()
    command = [programs / "ckpt", "status", "--json"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    held = [job["slot_bytes"] for job in json.loads(asked.stdout)["jobs"]]
    assert (sum(held) > 0) == (strategy == "no")


def test_a_transformers_that_writes_by_other_functions_writes_for_itself(tmp_path, monkeypatch):
    from libckpt.transformers import _weights

    writers = [("transformers.modeling_utils", "of_another_version")]
    monkeypatch.setattr(_weights, "WRITERS", writers)
    weights, module = Weights(tmp_path), importlib.import_module(writers[0][0])
    with _weights.collected(weights):
        assert not hasattr(module, "of_another_version")
    assert weights.file is None


def test_training_that_ends_in_another_way_has_its_folders_when_it_has_ended(trainer, tmp_path):
    said = run(trainer, tmp_path / "output", "unfinalized", max_steps=5).finish()
    assert "at the end of train() [5]" in said


@pytest.mark.parametrize("refused", ["view", "tied", "type", "name", "second", "metadata"])
def test_weights_that_would_not_be_the_same_file_are_left_to_transformers(tmp_path, refused):
    from libckpt.transformers._weights import Weights

    weights, good = Weights(tmp_path), {"a": torch.ones(3, 3)}
    metadata = {"format": "pt"}
    odd = {
        "view": {"a": torch.ones(3, 4).t()},
        "tied": {**good, "b": good["a"]},
        "type": {"a": torch.ones(3, dtype=torch.complex128)},
        "name": {"a//b": good["a"]},
    }.get(refused, good)
    if refused == "second":
        assert weights.take(good, tmp_path / "model-00001-of-00002.safetensors", metadata)
    if refused == "metadata":
        metadata = {"format": "pt", "quantised": "by somebody"}
    assert not weights.take(odd, tmp_path / "model.safetensors", metadata)
    assert not weights.take(good, tmp_path.parent / "model.safetensors", {"format": "pt"})


def test_a_callback_that_reads_the_folder_in_on_save_finds_it_complete(trainer, tmp_path):
    said = run(trainer, tmp_path / "output", "reading").finish()
    for number in range(5, 31, 5):
        assert f"read {number} {sorted(FILES)}" in said


def test_a_method_that_a_subclass_overrides_runs_as_it_is(trainer, tmp_path, expected):
    said = run(trainer, tmp_path / "output", "overriding").finish()
    assert results(said) == expected
    for number in (25, 30):
        found = {path.name for path in (tmp_path / "output" / f"checkpoint-{number}").iterdir()}
        assert found == FILES | {"mine.txt"}


BEST = {"eval_strategy": "steps", "eval_steps": 5, "metric_for_best_model": "loss",
        "learning_rate": 0.3, "save_total_limit": 1}  # fmt: skip


@pytest.mark.parametrize("more", [pytest.param({}, marks=pytest.mark.slow),
                                  {"load_best_model_at_end": True}, {"save_strategy": "best"}])
def test_the_best_checkpoint_is_tracked_and_kept(trainer, tmp_path, more):
    output, stock = tmp_path / "output", tmp_path / "stock"
    said = run(trainer, output, **BEST, **more).finish()
    assert results(said) == results(run(trainer, stock, "stock", **BEST, **more).finish())
    assert folders(output) == folders(stock)
    best = [
        json.loads((path / f"checkpoint-{folders(path)[-1]}" / "trainer_state.json").read_text())
        for path in (output, stock)
    ]
    names = [os.path.basename(state["best_model_checkpoint"]) for state in best]
    assert names[0] == names[1]


@pytest.mark.parametrize("kind", ["wrapper", "added"])
@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_any_instant_a_resume_succeeds_and_no_folder_is_half_written(
    trainer, tmp_path, kills, kind
):
    output = tmp_path / "output"
    chance = random.Random(os.environ.get("CKPT_PYTHON_SEED", "1"))
    steps = []
    for count in range(kills):
        process = run(trainer, output, kind, resume=True, save_steps=2, max_steps=100_000)
        steps.append(process.wait_for_number("made "))
        if count % 2:  # However slow the machine is, it gets on.
            # A run that goes on from folders only needs the first of them published.
            process.wait_until_said(f"made {steps[-1] + (2 if kind == 'wrapper' else 6)}\n")
        time.sleep(chance.random() * 0.3)
        process.kill()
        for path in output.glob("checkpoint-*"):
            assert problem_of(path) is None
            assert {file.name for file in path.iterdir()} == FILES
    assert steps == sorted(steps)
    assert steps[-1] > kills // 4


def test_a_folder_that_stock_transformers_left_half_written_does_not_stop_the_resume(
    trainer, tmp_path, expected
):
    output = tmp_path / "output"
    kill_when_held(run(trainer, output, "stock", hold=12))
    broken = output / "checkpoint-11"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"\x10")
    said = run(trainer, output, resume=True).finish()
    assert results(said) == expected
    assert "checkpoint-11 is not resumed from" in said


def test_the_just_in_time_checkpoint_of_sigterm_is_whole(trainer, tmp_path):
    output = tmp_path / "output"
    process = run(trainer, output, enable_jit_checkpoint=True, max_steps=100_000, save_steps=10_000)
    process.wait_until_said("made 3\n")
    process.send_signal(signal.SIGTERM)
    last = int(re.findall(r"^made (\d+)$", process.finish(), re.M)[-1])
    (number,) = folders(output)
    assert number <= last  # The step that was being made then is still made, and in memory.
    assert {path.name for path in (output / f"checkpoint-{number}").iterdir()} == FILES
    said = run(trainer, output, resume=True, max_steps=last + 3).finish()
    assert first_step(said) == last + 1


def test_memory_that_does_not_fit_gives_way_to_the_newest_folder(trainer, tmp_path):
    whole = run(trainer, tmp_path / "stock", "stock", width=32).finish()
    output = tmp_path / "output"
    kill_when_held(run(trainer, output, save_strategy="no", hold=17))  # Of another width.
    refused = run(trainer, output, resume=True, width=32)
    assert refused.wait() != 0
    said = refused.log.read_text()
    assert "does not fit this Trainer" in said
    assert "resume_from_checkpoint=False" in said

    kill_when_held(run(trainer, output, "stock", width=32, hold=12))
    process = run(trainer, output, resume=True, width=32, hold=22)
    assert kill_when_held(process) == 22
    said = process.log.read_text()
    assert first_step(said) == 11
    told = [line for line in said.splitlines() if "does not fit this Trainer" in line]
    assert len(told) == 1
    assert "checkpoint-10 instead" in told[0]
    said = run(trainer, output, resume=True, width=32).finish()
    assert first_step(said) == 23  # Memory is that of this model now.
    assert results(said) == results(whole)


def test_whatever_is_wrong_with_memory_the_newest_folder_is_resumed(trainer, tmp_path, expected):
    output = tmp_path / "output"
    kill_when_held(run(trainer, output, hold=19))
    said = run(trainer, output, "forgetful", resume=True).finish()
    assert first_step(said) == 16
    assert "no module of that name; resumes from" in said
    assert results(said) == expected


class SlowBox:
    """An outbox whose saves get to storage only when somebody waits for them."""

    def __init__(self):
        self.waiting, self.on_their_way = [], []
        self.session = types.SimpleNamespace(wait=lambda *arguments: None)  # All are committed.

    def patience(self):
        return _publish_queue.SLOT_DEADLINE

    def capture(self, items):
        self.on_their_way.append(len(self.waiting))
        return len(self.on_their_way)

    def post(self, step, publish, weights):
        self.waiting.append(_publish_queue.Waiting(step, step, publish, weights))

    def publish_first(self, deadline):
        if deadline > 0:
            self.waiting.pop(0)
        return deadline > 0

    def is_ours(self):
        return True


def test_no_save_overtakes_another_on_its_way_to_slow_storage(tmp_path, monkeypatch, caplog):
    box, folders = SlowBox(), Folders(tmp_path)
    monkeypatch.setattr(_publish_queue, "_queues", [box])
    trainers = TrainerFolders(None, "job")
    trainers._queue = box
    for number in range(1, 6):
        folders.work.begin(str(number))
        weights = Weights(tmp_path)
        weights.objects = {"optimizer.pt": {}}
        trainers._hand_over(folders, number, weights)
    # The oldest is being written; of two that wait behind it the daemon would take the newer one.
    assert box.on_their_way == [0, 1, 1, 1, 1]

    publish = box.waiting[0].publish
    publish(None, None)
    assert f"{folders.path(int(publish.number))} does not come: a newer save" in caplog.text


def test_what_is_pushed_to_the_hub_is_complete(trainer, tmp_path):
    said = run(trainer, tmp_path / "output", "pushing").finish()
    for number in range(5, 31, 5):
        assert f"pushed {number} {sorted(FILES)}" in said


class Scored(torch.nn.Module):
    """Its evaluations have the scores that it was made with, one after another."""

    def __init__(self, scores):
        super().__init__()
        self.weight, self.scores = torch.nn.Parameter(torch.ones(1)), list(scores)

    def forward(self, x):
        loss = (self.weight * x).square().mean()
        return {"loss": loss, "logits": x if self.training else x * 0 + self.scores.pop(0)}


def test_the_best_steps_by_an_evaluation_stay_among_those_of_the_session(runtime, tmp_path):
    import transformers

    import libckpt.transformers

    class Stored(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            callback._memory.session.flush()  # Each step, so that all could be kept.

    callback = libckpt.transformers.Callback(
        dir=tmp_path / "best", save_storage_interval=1, max_ckpt_num=1, keep_best=1,
        best_metric="eval_score", best_mode="max",
    )  # fmt: skip
    settings = transformers.TrainingArguments(
        str(tmp_path / "output"), max_steps=5, per_device_train_batch_size=1, save_strategy="no",
        per_device_eval_batch_size=1, eval_strategy="steps", eval_steps=1, report_to=[],
        use_cpu=True, disable_tqdm=True, logging_steps=1, label_names=["x"],
    )  # fmt: skip
    trainer = transformers.Trainer(
        Scored([1.0, 5.0, 2.0, 4.0, 3.0]), settings, train_dataset=[{"x": torch.ones(1)}] * 5,
        eval_dataset=[{"x": torch.ones(1)}], callbacks=[callback, Stored()],
        compute_metrics=lambda found: {"score": float(found.predictions.max())},
    )  # fmt: skip
    trainer.train()
    callback._memory.session.close()
    kept = sorted(path.name for path in (tmp_path / "best").glob("step-*"))
    assert kept == ["step-000000002", "step-000000005"]


def test_another_trainer_of_the_process_goes_on_with_more_steps(runtime, tmp_path, caplog):
    import transformers

    import libckpt.transformers

    def made(steps):
        settings = transformers.TrainingArguments(
            str(tmp_path / "output"), max_steps=steps, per_device_train_batch_size=1, save_steps=4,
            report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(Scored([]), settings, callbacks=[began],
                                       train_dataset=[{"x": torch.ones(1)}] * 20)  # fmt: skip
        # A job that no other test has left open here. The last step alone finds a Slot for sure.
        callback = libckpt.transformers.Callback(job="more-steps", save_mem_interval=3)
        trainer.add_callback(callback)
        callback.attach(trainer)
        callbacks.append(callback)
        return trainer

    class Began(transformers.TrainerCallback):
        steps = []

        def on_train_begin(self, args, state, control, **_):
            self.steps.append(state.global_step)

    began, callbacks = Began(), []
    first, second = made(3), made(6)  # Each has the session when it trains.
    for trainer in (first, second, first):
        trainer.train(resume_from_checkpoint=True)
    assert began.steps[0] == 0 and began.steps[1] == 3 and began.steps[2] == 6
    sessions = [each._memory.session for each in callbacks]
    assert [session.is_closed for session in sessions] == [False, True]
    assert sessions[0].counts()["failed"] == 0
    assert "has a session of it already" not in caplog.text
    assert "Transformers writes its checkpoints itself" not in caplog.text
    sessions[0].abandon()


def test_a_save_meets_the_other_ranks_once_and_takes_nothing_of_an_earlier_run(
    runtime, tmp_path, monkeypatch
):
    """Each save has a folder of its own, that no rank has to empty before the others write."""
    transformers = pytest.importorskip("transformers")
    import libckpt.transformers

    output = tmp_path / "output"
    left = output / ".libckpt" / "work" / "2" / "checkpoint-2" / "left.pt"
    left.parent.mkdir(parents=True)
    left.write_text("of a run that was killed in its save")
    settings = transformers.TrainingArguments(
        str(output), max_steps=4, per_device_train_batch_size=1, save_steps=2, report_to=[],
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        Scored([1.0] * 4), settings, train_dataset=[{"x": torch.ones(1)}] * 4
    )
    trainer = libckpt.transformers.TrainerWrapper(trainer)
    meetings, stock = [], trainer.accelerator.wait_for_everyone
    trainer.accelerator.wait_for_everyone = lambda: meetings.append(stock())
    saves = trainer._save_checkpoint

    def save(*given):
        before = len(meetings)
        saves(*given)
        assert len(meetings) == before + 1

    trainer._save_checkpoint = save
    trainer.train()
    assert folders(output) == [2, 4]
    assert not (output / "checkpoint-2" / "left.pt").exists()
    assert list((output / ".libckpt" / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("there", "expected"),
    [([[5, 10, 15], [5, 10, 12]], 10), ([[5, 15], [5, 10]], 5), ([[5], []], None),
     ([[5], [7]], None), ([[5, 10], [5, 10]], 10)],
)  # fmt: skip
def test_nodes_with_disks_of_their_own_resume_from_one_folder(tmp_path, there, expected):
    """With save_on_each_node: a node may have died before its newest one was there."""
    store, found = torch.distributed.HashStore(), {}

    def resume(rank):
        folders = Folders(tmp_path / str(rank))
        for number in there[rank]:
            folders.path(number).mkdir(parents=True)
            (folders.path(number) / "trainer_state.json").write_text("{}")
        ranks = Ranks("job", rank, len(there), store, "said")
        found[rank] = newest_for_all(folders, ranks)

    threads = [threading.Thread(target=resume, args=(rank,)) for rank in range(len(there))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(len(there)), expected)


def test_nodes_that_have_one_disk_after_all_publish_a_folder_once(tmp_path, caplog):
    """With save_on_each_node; the second would remove what the first is about to publish."""
    folder = tmp_path / "run-1" / "checkpoint-3"
    folder.mkdir(parents=True)
    (folder / "rng_state_1.pth").write_text("of the other rank")
    taken = []
    for index in range(2):
        trainer = types.SimpleNamespace(args=types.SimpleNamespace(process_index=index))
        taken.append(TrainerFolders(trainer, "job", False)._take(Weights(folder), folder.parent))
    assert taken == [True, False]
    assert (tmp_path / "run-1" / "taken-by-0" / "rng_state_1.pth").exists()
    assert "train without save_on_each_node" in caplog.text


def test_several_ranks_resume_one_step_from_memory(trainer, tmp_path):
    options = {"ranks": 2, "per_device_train_batch_size": 2}
    whole = run(trainer, tmp_path / "stock", "stock", **options).finish()
    output = tmp_path / "output"
    for step in (8, 17):
        assert kill_when_held(run(trainer, output, resume=True, hold=step, **options)) == step
    said = run(trainer, output, resume=True, **options).finish()
    assert first_step(said) == 18
    assert "from own memory" in said
    assert results(said) == results(whole)
    assert folders(output)[-1] == 30  # One before it may have been overtaken on its way.
    ours, theirs = (tmp_path / kind / "checkpoint-30" for kind in ("output", "stock"))
    assert {p.name for p in ours.iterdir()} == {p.name for p in theirs.iterdir()}


@pytest.mark.parametrize(
    "kind", ["is_fsdp_enabled", "is_deepspeed_enabled", "__version__", "_init_training_state"]
)
def test_a_trainer_that_is_not_known_is_left_as_it_is_and_told_so(
    runtime, tmp_path, caplog, monkeypatch, kind
):
    transformers = pytest.importorskip("transformers")
    import libckpt.transformers

    stock = transformers.Trainer(
        model=torch.nn.Linear(2, 2),
        args=transformers.TrainingArguments(output_dir=tmp_path, use_cpu=True, report_to=[]),
    )
    if kind == "__version__":
        monkeypatch.setattr(libckpt.transformers.transformers, kind, "4.57.1")
    elif kind.startswith("_"):
        stock.is_deepspeed_enabled, stock._init_training_state = True, lambda max_steps: None
    else:
        setattr(stock, kind, True)
        stock.args.save_on_each_node = kind == "is_deepspeed_enabled"
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        libckpt.transformers.TrainerWrapper(stock)
    (told,) = [record.getMessage() for record in caplog.records]
    reasons = {"is_fsdp_enabled": "FSDP1 shards it", "is_deepspeed_enabled": "save_on_each_node",
               "__version__": "Transformers 4.57.1 is",
               "_init_training_state": "has no _init_training_state"}  # fmt: skip
    assert reasons[kind] in told
    assert "its steps are not captured in memory" in told
    assert not [name for name, part in vars(stock).items() if getattr(part, "__name__", "") ==
                "wrapped"]  # fmt: skip
    assert not runtime.exists()  # No daemon was started for it.
