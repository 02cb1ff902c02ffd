"""Goal: a loop over accelerate that is killed goes on as if it had not been.

Method: a small model with dropout and shuffled data is trained with the installed accelerate, by
one rank and by ranks over gloo; it is killed, resumed from memory and from folders, and compared
step by step with an uninterrupted run of stock accelerate. Stock accelerate itself loads the
files on storage.
"""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from accelerate.utils import ProjectConfiguration  # noqa: E402

import libckpt  # noqa: E402

FILES = {"model.safetensors", "optimizer.bin", "scheduler.bin", "custom_checkpoint_0.pkl"}


def run(trainer, project, kind="libckpt", **options):
    return trainer("acc.py", str(project), kind, json.dumps(options))


def said(log, rank, word):
    return re.findall(rf"^r{rank} {word} (.*)$", log, re.M)


def results(log, ranks=1):
    found = [(said(log, rank, "losses"), said(log, rank, "weights")) for rank in range(ranks)]
    assert all(losses and weights for losses, weights in found)
    return found


def made(log, rank=0):
    """By step, its loss."""
    return {int(step): float(loss) for step, loss in map(str.split, said(log, rank, "made"))}


def began(log, rank=0):
    return int(said(log, rank, "began")[0])


def folders(project):
    return sorted(path.name for path in (project / "checkpoints").glob("*"))


def files(folder):
    return {path.name for path in folder.iterdir()}


def held(log, ranks):
    """The newest step that all ranks had in memory then."""
    found = [said(log, rank, "held")[0] for rank in range(ranks)]
    return min(0 if step == "None" else int(step) for step in found)


def kill_when_held(process, ranks):
    for rank in range(ranks):
        process.wait_until_said(f"r{rank} held ")
    process.kill()
    return process.log.read_text()


@pytest.mark.parametrize(
    "ranks, options",
    [
        (1, {}),
        pytest.param(1, {"seedable": True, "ema": 1}, marks=pytest.mark.slow),
        # test_early_ends.py has two ranks in the quick form.
        pytest.param(2, {}, marks=pytest.mark.slow),
        pytest.param(2, {"seedable": True, "ema": 1}, marks=pytest.mark.slow),
        pytest.param(2, {"sharded": True}, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed_from_memory_it_ends_as_if_nothing_had_been(
    trainer, tmp_path, ranks, options
):
    options = {"ranks": ranks, "steps": 24} | options
    whole = run(trainer, tmp_path / "stock", "stock", **options).finish()
    project = tmp_path / "project"
    log = ""
    for hold in (8, 18):
        log = kill_when_held(run(trainer, project, hold=hold, **options), ranks)
    last = run(trainer, project, **options).finish()
    assert results(last, ranks) == results(whole, ranks)
    assert made(log).items() <= made(whole).items()
    assert began(last) >= held(log, ranks) > 0
    if held(log, ranks) > 15:  # Memory is newer than the folder of step 15.
        assert re.search(r"libckpt: resumes step 1[678] from own memory", last)
    assert folders(project) == folders(tmp_path / "stock")
    for folder in folders(project):
        stock = tmp_path / "stock" / "checkpoints" / folder
        assert files(project / "checkpoints" / folder) == files(stock)


def check_losses(log, ranks, whole):
    """Those of the ranks together are those of a run that was left alone, which one rank made: sums
    in another order differ in their last digits."""
    of_ranks = [made(log, rank) for rank in range(ranks)]
    steps = set.intersection(*map(set, of_ranks))
    assert steps
    found = {step: sum(each[step] for each in of_ranks) / ranks for step in steps}
    assert found == pytest.approx({step: made(whole)[step] for step in steps}, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"sharded": True}])
def test_another_number_of_ranks_goes_on_from_memory(trainer, tmp_path, options):
    project, step = tmp_path / "project", 0
    options = options | {"steps": 20, "every": 50, "alike": True}
    whole = run(trainer, tmp_path / "stock", "stock", **options | {"sharded": False}).finish()
    for ranks, hold in ((2, 7), (1, 12), (2, 17)):
        process = run(trainer, project, hold=hold, ranks=ranks, **options)
        log = kill_when_held(process, ranks)
        for rank in range(ranks):
            assert began(log, rank) >= step
        check_losses(log, ranks, whole)
        step = held(log, ranks)
        assert step > 0
    log = run(trainer, project, **options).finish()
    assert began(log) >= step
    assert max(made(log)) == 20
    check_losses(log, 1, whole)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_its_folders_are_those_of_stock_accelerate_which_goes_on_from_them(trainer, tmp_path):
    from safetensors.torch import load_file

    run(trainer, tmp_path / "stock", "stock", steps=17).finish()
    project = tmp_path / "project"
    run(trainer, project, steps=17).finish()
    assert folders(project) == ["checkpoint_1", "checkpoint_2"]
    for name in FILES:
        load = load_file if name.endswith(".safetensors") else torch.load
        own, stock = (load(root / "checkpoints" / "checkpoint_2" / name)
                      for root in (project, tmp_path / "stock"))  # fmt: skip
        assert same(own, stock), name
    expected = run(trainer, tmp_path / "stock", "stock", resume="state").finish()
    found = run(trainer, project, "stock", resume="state").finish()
    assert began(found) == 15
    assert results(found) == results(expected)


def test_without_its_memory_it_goes_on_from_the_newest_folder_as_stock_does(
    trainer, tmp_path, programs
):
    project = tmp_path / "project"
    process = run(trainer, project, hold=17, settles=True)
    process.wait_until_said("r0 held ")
    process.kill()
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)
    other = tmp_path / "other"
    copied = run(trainer, project).finish()
    step = began(copied)
    assert step == 15
    assert "libckpt: resumes from" in copied and "memory has nothing" in copied
    shutil.rmtree(other, ignore_errors=True)
    run(trainer, other, "stock", steps=step).finish()
    expected = run(trainer, other, "stock", resume="state").finish()
    assert began(expected) == step
    assert results(copied) == results(expected)


def test_disabled_it_is_stock_accelerate(trainer, tmp_path, monkeypatch):
    expected = run(trainer, tmp_path / "stock", "stock", steps=12).finish()
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    found = run(trainer, tmp_path / "project", steps=12).finish()
    assert results(found) == results(expected)
    assert not (tmp_path / "project" / ".libckpt").exists()
    assert not (tmp_path / "runtime").exists()


# --- in process


@pytest.fixture
def prepared(runtime, tmp_path, monkeypatch):
    """Makes an attached Accelerator with a model and an optimizer."""
    import libckpt.accelerate

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    states = []

    def make(limit=2, is_named=True, width=2, **options):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
        configuration = ProjectConfiguration(project_dir=str(tmp_path / "project"),
                                             automatic_checkpoint_naming=is_named,
                                             total_limit=limit)  # fmt: skip
        accelerator = accelerate.Accelerator(cpu=True, project_config=configuration)
        model = torch.nn.Linear(width if width > 8 else 8, width)
        accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        states.append(libckpt.accelerate.attach(accelerator, **options))
        return accelerator, states[-1]

    yield make
    for state in states:
        leave(state)


def leave(state):
    """As a death would."""
    if state._memory is not None:
        if state._memory.session is not None:
            state._memory.session.abandon()
        for sets in state._folders._sets.values():
            sets._queue.close()
        state._folders._sets.clear()


def step(accelerator):
    (model,), (optimizer,) = accelerator._models, accelerator._optimizers
    accelerator.backward(model(torch.ones(3, model.in_features)).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def test_the_oldest_folder_goes_once_the_newest_is_there(prepared, tmp_path):
    accelerator, state = prepared(limit=1)
    project = tmp_path / "project"
    accelerator.save_state()
    state.settle()
    accelerator.save_state()
    assert folders(project) == ["checkpoint_0"]  # Stock accelerate has nothing by now.
    state.settle()
    assert folders(project) == ["checkpoint_1"]
    stale = project / "checkpoints" / "checkpoint_2"
    stale.mkdir()
    with pytest.raises(ValueError, match="already exists"):
        accelerator.save_state()


def test_a_folder_of_any_name_is_loaded_though_it_was_still_on_its_way(prepared, tmp_path):
    accelerator, _ = prepared(is_named=False)
    (model,) = accelerator._models
    step(accelerator)
    weights = model.weight.detach().clone()
    target = tmp_path / "elsewhere" / "best"
    assert accelerator.save_state(str(target)) == target
    assert not target.exists()
    step(accelerator)
    assert not torch.equal(model.weight, weights)
    accelerator.load_state(str(target))
    assert torch.equal(model.weight, weights)
    step(accelerator)
    accelerator.save_state(str(target), safe_serialization=False)  # The same path, other files.
    accelerator.load_state(str(target))
    assert files(target) == {"pytorch_model.bin", "optimizer.bin", "random_states_0.pkl"}


def test_hooks_of_the_users_see_and_write_what_they_do_with_stock_accelerate(prepared, tmp_path):
    accelerator, state = prepared()

    def hook(models, weights, folder):
        torch.save(weights.pop(), os.path.join(folder, "mine.pt"))

    accelerator.register_save_state_pre_hook(hook)
    accelerator.save_state()
    state.settle()
    folder = tmp_path / "project" / "checkpoints" / "checkpoint_0"
    assert files(folder) == {"mine.pt", "optimizer.bin", "random_states_0.pkl"}
    assert torch.load(folder / "mine.pt").keys() == {"weight", "bias"}


def test_a_folder_is_never_newer_than_what_memory_has(prepared, monkeypatch):
    from libckpt.adapters.torch._file_set import FileSet

    accelerator, state = prepared(width=4096)
    session, captured, commit = state._memory.session, [], FileSet.commit

    def watched(*arguments, **options):
        captured.append(session.counts()["captured"])
        return commit(*arguments, **options)

    monkeypatch.setattr(FileSet, "commit", watched)
    for number in (1, 2, 3):
        step(accelerator)
        state.capture(number)
        accelerator.save_state()
    assert captured == [1, 2, 3]


def test_load_state_without_a_folder_takes_memory_and_raises_where_there_is_nothing(
    prepared, caplog
):
    accelerator, state = prepared()
    with pytest.raises(FileNotFoundError):
        accelerator.load_state()
    step(accelerator)
    accelerator.save_state()
    step(accelerator)
    assert state.capture(2)
    state._memory.session.wait(2, "committed")
    weights = accelerator._models[0].weight.detach().clone()
    step(accelerator)
    state.settle()
    accelerator.load_state()
    assert torch.equal(accelerator._models[0].weight, weights)
    assert "resumes step 2 from own memory" in caplog.text
    accelerator.save_state()  # Under a number that is free.


def test_a_state_that_cannot_be_had_at_the_beginning_fails_no_resume(prepared, caplog):
    class Late:
        count = 0

        def state_dict(self):
            self.count += 1
            if self.count > 2:  # The room for the first capture is made after the restore.
                raise RuntimeError("no state yet")
            return {}

        def load_state_dict(self, state):
            pass

    accelerator, state = prepared()
    accelerator.register_for_checkpointing(Late())
    assert state.resume() == 0
    assert "memory for the steps is not made before the first of them: no state yet" in caplog.text


class Broken:
    """A registered object, whose state cannot be had once it has failed."""

    has_failed = True

    def state_dict(self):
        if self.has_failed:
            raise RuntimeError("the file is closed")
        return {"a": 1}

    def load_state_dict(self, state):
        pass


def test_an_object_without_a_state_refuses_no_training_that_begins(prepared, caplog):
    accelerator, state = prepared()
    accelerator.register_for_checkpointing(Broken())
    assert state.resume() == 0
    assert "the registered object 0 (Broken) has no state: the file is closed" in caplog.text
    step(accelerator)
    assert not state.capture(1)


def test_a_training_does_not_begin_over_a_step_that_an_object_without_a_state_would_lose(prepared):
    accelerator, state = prepared()
    broken = Broken()
    broken.has_failed = False
    accelerator.register_for_checkpointing(broken)
    assert state.resume() == 0
    step(accelerator)
    assert state.capture(1)
    state._memory.session.wait(1, "committed")
    broken.has_failed = True
    with pytest.raises(libckpt.Unavailable, match=r"object 0 \(Broken\) has no state"):
        state.resume()
    broken.has_failed = False
    assert state.resume() == 1


def test_a_folder_that_came_while_libckpt_was_off_is_newer_than_what_memory_has(
    prepared, tmp_path, monkeypatch, caplog
):
    accelerator, state = prepared(limit=None)
    step(accelerator)
    accelerator.save_state()
    assert state.capture(1)
    state._memory.session.wait(1, "committed")
    state.settle()
    leave(state)
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    accelerator, state = prepared(limit=None)
    assert state.resume() == 0  # Stock's folders know no step, and the one of ours was of none.
    step(accelerator)
    weights = accelerator._models[0].weight.detach().clone()
    accelerator.save_state()  # Under a number that is free.
    assert folders(tmp_path / "project") == ["checkpoint_0", "checkpoint_1"]
    monkeypatch.delenv("LIBCKPT_DISABLE")
    accelerator, state = prepared(limit=None)
    assert state.resume() == 0
    assert torch.equal(accelerator._models[0].weight, weights)
    assert "checkpoint_1, which is newer than step 1 in memory" in caplog.text
    step(accelerator)
    weights = accelerator._models[0].weight.detach().clone()
    assert state.capture(2)
    state._memory.session.wait(2, "committed")
    leave(state)
    accelerator, state = prepared(limit=None)
    assert state.resume() == 2  # From here on memory is newer than that folder.
    assert torch.equal(accelerator._models[0].weight, weights)


def test_memory_of_the_last_update_is_better_than_a_folder_between_two(prepared, tmp_path):
    """The folder lacks the gradients of the batches since then."""
    accelerator, state = prepared()
    accelerator.gradient_accumulation_steps = 2
    for number in range(1, 4):
        with accelerator.accumulate(accelerator._models[0]):
            step(accelerator)
        state.capture(number)
    state._memory.session.wait(2, "committed")
    accelerator.save_state()
    state.settle()
    leave(state)
    accelerator, state = prepared()
    assert state.resume() == 2
    state._memory.session.start_fresh()
    state._memory.session.close()  # Memory has nothing from here on.
    leave(state)
    accelerator, state = prepared()
    assert state.resume() == 3


def test_the_end_frees_memory_only_where_a_folder_has_the_newest_step(prepared, caplog):
    accelerator, state = prepared()
    for number in (1, 2):
        step(accelerator)
        assert state.capture(number).captured.result() is None
        if number == 1:
            accelerator.save_state()
    accelerator.end_training()
    accelerator, state = prepared()
    assert state.resume() == 2
    step(accelerator)
    state.capture(3)
    accelerator.save_state()
    accelerator.end_training()
    accelerator, state = prepared()
    caplog.clear()
    assert state.resume() == 3
    assert "memory has nothing" in caplog.text


def test_a_last_step_that_was_not_due_is_captured_at_the_end(prepared, tmp_path):
    places = [{}, {"job": "stored", "dir": tmp_path / "steps"}]
    for options in places:
        options["save_mem_interval"] = 2
        accelerator, state = prepared(is_named=False, **options)
        for number in (1, 2, 3):
            step(accelerator)
            state.capture(number)
        weights = accelerator._models[0].weight.detach().clone()
        accelerator.end_training()
        accelerator, state = prepared(is_named=False, **options)
        assert state.resume() == 3
        assert torch.equal(accelerator._models[0].weight, weights)
    assert (tmp_path / "steps" / "step-000000003").is_dir()


def test_a_last_step_that_found_no_free_slot_is_captured_at_the_end(prepared, runtime):
    accelerator, state = prepared()
    step(accelerator)
    state.capture(1).committed.result()
    daemon = json.loads((runtime / "ckptd.json").read_text())["pid"]
    os.kill(daemon, signal.SIGSTOP)  # It frees no Slot.
    number, outcome = 1, "started"
    try:
        while outcome == "started" and number < 20:
            step(accelerator)
            number += 1
            outcome = state.capture(number).outcome
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert outcome == "skipped_no_slot"
    weights = accelerator._models[0].weight.detach().clone()
    accelerator.end_training()
    accelerator, state = prepared()
    assert state.resume() == number
    assert torch.equal(accelerator._models[0].weight, weights)


def test_objects_that_are_gone_at_the_end_are_not_captured(prepared):
    accelerator, state = prepared(save_mem_interval=2)
    for number in (1, 2, 3):
        step(accelerator)
        state.capture(number)
    accelerator.free_memory()
    accelerator.end_training()
    _, state = prepared()
    assert state.resume() == 2


def test_the_best_steps_stay_among_those_of_the_session(prepared, tmp_path):
    accelerator, state = prepared(dir=tmp_path / "best", save_storage_interval=1, max_ckpt_num=1,
                                  keep_best=1, best_metric="loss")  # fmt: skip
    for number, loss in enumerate([3.0, 1.0, 2.0], 1):
        step(accelerator)
        state.capture(number, metrics={"loss": loss})
        state._memory.session.flush()  # Each step, so that all could be kept.
    accelerator.end_training()
    kept = sorted(path.name for path in (tmp_path / "best").glob("step-*"))
    assert kept == ["step-000000002", "step-000000003"]


def test_without_a_name_for_the_job_it_asks_for_one(monkeypatch, runtime):
    import libckpt.accelerate

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(libckpt.InvalidArgument, match="no project_dir"):
        libckpt.accelerate.attach(accelerate.Accelerator(cpu=True))


def test_without_memory_for_its_steps_a_training_goes_on(prepared, monkeypatch, caplog):
    from libckpt import errors
    from libckpt.accelerate import _memory

    def refuse(*_, **__):
        raise errors.Exhausted("memory_budget is too small")

    monkeypatch.setattr(_memory, "init", refuse)
    accelerator, state = prepared()
    step(accelerator)
    assert state.capture(1) is None
    assert "memory_budget is too small; steps are not captured in memory" in caplog.text


def test_an_accelerator_of_an_unknown_kind_is_left_alone(prepared, monkeypatch, caplog):
    accelerator, _ = prepared()
    import libckpt.accelerate

    monkeypatch.setattr(
        type(accelerator), "distributed_type", accelerate.utils.DistributedType.DEEPSPEED
    )
    state = libckpt.accelerate.attach(accelerator, job="other")
    assert "the Accelerator is left as it is: it trains with DEEPSPEED" in caplog.text
    assert state.capture(1) is None
