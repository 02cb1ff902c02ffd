"""Goal: an engine of DeepSpeed goes on from memory after any death, on any number of ranks, and
what it saves is a folder that stock DeepSpeed reads.

Method: real ranks of trainers/zero.py over gloo, for each stage of ZeRO. They are killed with
SIGKILL and started again; losses, weights and optimizer state are compared step by step with a run
that was left alone.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import pytest

pytest.importorskip("deepspeed")

from test_ranks import said  # noqa: E402
from trainers import ports  # noqa: E402

import libckpt  # noqa: E402

STEPS = 9
BATCH = 16
CASES = [
    pytest.param({"stage": 3}, id="stage-3"),
    pytest.param({"stage": 1}, id="stage-1", marks=pytest.mark.slow),
    pytest.param({"stage": 0}, id="stage-0", marks=pytest.mark.slow),
    pytest.param({"stage": 0, "dtype": "bf16"}, id="stage-0-bf16", marks=pytest.mark.slow),
    pytest.param({"stage": 2}, id="stage-2", marks=pytest.mark.slow),
    pytest.param({"stage": 2, "dtype": "bf16"}, id="stage-2-bf16", marks=pytest.mark.slow),
    pytest.param({"stage": 3, "dtype": "bf16"}, id="stage-3-bf16", marks=pytest.mark.slow),
]


class Jobs:
    def __init__(self, trainer):
        self._trainer = trainer
        self._reserved = []

    def start(self, ranks, **options):
        self._reserved.append(ports.reserve())
        options = {
            "job": "job", "steps": STEPS, "batch": BATCH, "micro": BATCH // 4,
            "port": self._reserved[-1].getsockname()[1], **options,
        }  # fmt: skip
        return self._trainer("zero.py", str(ranks), json.dumps(options))

    def run(self, ranks, **options):
        return self.start(ranks, **options).finish()

    def run_killed(self, ranks, at, **options):
        """Kills all ranks once they hold at the step; returns what they said."""
        job = self.start(ranks, hold_at=at, **options)
        for rank in range(ranks):
            job.wait_until_said(f"r{rank} made {at} ")
            if at in options.get("save_at", ()):
                job.wait_until_said(f"r{rank} saved {at} ")
        for process in re.findall(r"^process \d+ (\d+)$", job.log.read_text(), re.MULTILINE):
            os.kill(int(process), signal.SIGKILL)
        job.wait()
        return job.log.read_text()

    def close(self):
        for reserved in self._reserved:
            reserved.close()


@pytest.fixture
def jobs(trainer):
    found = Jobs(trainer)
    yield found
    found.close()


def lose_memory(programs):
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)


def states(log, rank=0):
    """By step, the digest of what the rank had."""
    return {int(step): digest for step, digest, *_ in said(log, rank, "made")}


def rates(log):
    return {int(step): float(rate) for step, _, _, rate in said(log, 0, "made")}


def losses(log, rank=0):
    return [float(loss) for loss in said(log, rank, "losses")[0]]


def check_began(log, ranks, before):
    """All ranks began with what was made at the newest step of `before`."""
    step, digest = said(log, 0, "began at")[0]
    made = states(before)
    assert int(step) == max(made)
    assert made[int(step)] == digest
    assert [said(log, rank, "began at") for rank in range(ranks)] == [[[step, digest]]] * ranks
    return int(step)


@pytest.mark.slow
def test_another_number_of_ranks_takes_memory_where_a_newer_folder_is_not_for_it(jobs, tmp_path):
    """Memory lacks a step that has a folder, as when no Slot was free for it."""
    case = {"stage": 1, "folder": str(tmp_path / "folder"), "attach": {"save_mem_interval": 4}}
    two = jobs.run_killed(2, 6, **case, save_at=[6])
    log = jobs.run(1, **case, steps=7)
    assert said(log, 0, "began at") == [["4", states(two)[4]]]
    assert "DeepSpeed loads it with as many only" in log
    log = jobs.run(2, **case, job="other", steps=7)
    assert said(log, 0, "began at") == [["6", states(two)[6]]]


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_were_killed_go_on_from_memory_in_any_number(jobs, case):
    """2, 2 again to the last bit, then 1, 4, 2; the global batch stays."""
    whole = jobs.run(2, **case, job="whole", stock=True)
    expected = losses(whole)
    killed = jobs.run_killed(2, 3, **case)
    resumed = {**case, "folder": "/nonexistent", "seed": 2}  # Frozen weights come along, too.
    again = jobs.run_killed(2, 5, **resumed)
    assert check_began(again, 2, killed) == 3
    assert states(again) == {step: states(whole)[step] for step in (4, 5)}
    before, logs = again, []
    for ranks, at in ((1, 6), (4, 7)):
        log = jobs.run_killed(ranks, at, **resumed)
        assert check_began(log, ranks, before) == at - 1
        before, logs = log, [*logs, log]
    log = jobs.run(2, **resumed)
    check_began(log, 2, before)
    # Sums in another order differ in the last digits.
    assert losses(log) == pytest.approx(expected, abs=2e-2 if "dtype" in case else 1e-4)
    assert len(losses(log)) == STEPS  # The client state came along.
    for each in (again, *logs, log):
        assert rates(each) == {step: rates(whole)[step] for step in rates(each)}
    assert "libckpt: resumes step 7 from own memory; there is no folder" in log


def test_a_folder_that_was_on_its_way_is_published_and_stock_deepspeed_reads_it(jobs, tmp_path):
    folder = tmp_path / "folder"
    given = {"stage": 1, "folder": str(folder), "save_at": [2, 4]}
    killed = jobs.run_killed(2, 4, **given)
    log = jobs.run(2, **given, end="wait", seed=2)
    check_began(log, 2, killed)
    assert (folder / "latest").read_text() == "global_step4"
    stock = jobs.run(2, stage=1, folder=str(folder), stock=True, seed=2)
    assert said(stock, 0, "began at") == [["4", states(killed)[4]]]
    assert losses(stock) == losses(log)


@pytest.mark.slow
def test_the_newer_of_memory_and_folder_is_taken_and_tags_and_weights_alone_are_stock(
    jobs, tmp_path
):
    folder = str(tmp_path / "folder")
    given = {"stage": 1, "folder": folder}
    killed = jobs.run_killed(2, 5, **given, save_at=[2, 5], end="wait",
                             attach={"save_mem_interval": 3})  # fmt: skip
    made = states(killed)
    again = jobs.run_killed(2, 7, **given)  # Memory has step 3, the folder step 5.
    assert said(again, 1, "began at") == [["5", made[5]]]
    assert "which is newer than step 3 in memory" in again
    again = jobs.run_killed(2, 7, **given, load={"tag": "global_step2"})
    assert said(again, 0, "loaded") == [[f"{folder}/global_step2/mp_rank_00_model_states.pt"]]
    assert said(again, 0, "began at") == [["2", made[2]]]
    weights = jobs.run(2, **given, load={"load_module_only": True}, steps=1)
    assert said(weights, 0, "began at")[0][0] == "0"
    assert "resumes step" not in weights


@pytest.mark.slow
def test_a_step_on_storage_has_what_the_function_said_of_it(jobs, tmp_path):
    options = {"save_storage_interval": 1, "max_ckpt_num": 1, "keep_best": 1, "best_metric": "loss"}
    log = jobs.run(2, stage=1, steps=3, dir=str(tmp_path / "dir"), attach=options, end="close")
    found = libckpt.list_published(tmp_path / "dir").checkpoints
    assert found[0].step == 3
    assert [each.metrics for each in found] == [{"loss": losses(log)[each.step - 1]}
                                                for each in found]  # fmt: skip


def test_a_training_that_loads_nothing_leaves_what_is_there(jobs, tmp_path):
    """As DeepSpeed, which deletes no folder of a run that was not loaded."""
    options = {"save_storage_interval": 1, "max_ckpt_num": 2}
    given = {"stage": 1, "dir": str(tmp_path / "dir"), "attach": options, "end": "close"}
    first = jobs.run(1, **given, steps=3)
    there = [each.step for each in libckpt.list_published(tmp_path / "dir").checkpoints]
    log = jobs.run(1, **{**given, "end": None}, steps=4)
    assert "after attach, call engine.load_checkpoint or libckpt.deepspeed.resume" in log
    assert [each.step for each in libckpt.list_published(tmp_path / "dir").checkpoints] == there
    again = jobs.run(1, **given, steps=4, resume={})
    assert said(again, 0, "resumed") == [["3"]]
    assert said(again, 0, "began at") == [["3", states(first)[3]]]


def test_an_engine_is_attached_once_to_the_job_that_the_environment_names(
    jobs, tmp_path, monkeypatch
):
    given = {"stage": 1, "folder": str(tmp_path / "folder"), "attachments": 2}
    with monkeypatch.context() as patch:
        patch.setenv("LIBCKPT_JOB", "named")
        first = jobs.run(1, **given, job=None, steps=3)
    assert "attach: job named is attached to the engine already" in first
    log = jobs.run(1, **given, job="named", steps=4)
    assert said(log, 0, "began at") == [["3", states(first)[3]]]


@pytest.mark.slow
@pytest.mark.parametrize("is_stock", [True, False], ids=["stock-folder", "own-folder"])
def test_a_client_state_that_only_the_folder_has_is_not_lost(jobs, tmp_path, is_stock):
    """No step in memory is newer than a save that it could know of: the folder is from before
    libckpt was attached, or was saved after the newest step was captured."""
    given = {"stage": 1, "folder": str(tmp_path / "folder"), "attach": {"client_state": None}}
    if is_stock:
        first = jobs.run(2, **given, stock=True, save_at=[2], steps=2)
        jobs.run_killed(2, 4, **given)
    else:
        first = jobs.run_killed(2, 2, **given, save_at=[2])
    again = jobs.run(2, **given, steps=4)
    assert said(again, 0, "began at") == [["2", states(first)[2]]]
    assert len(losses(again)) == 4  # Those of the first two steps are in the client state.
    assert "was given a client_state (losses), and the libckpt.deepspeed.attach of" in again


def test_without_libckpt_all_is_as_deepspeed_has_it(jobs, tmp_path, monkeypatch):
    """It is disabled; then its daemon cannot be started."""
    folder = tmp_path / "disabled"
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    given = {"stage": 1, "save_at": [2], "steps": 3, "universal_at": 3}
    log = jobs.run(2, **given, folder=str(folder))
    assert said(log, 0, "saved") == [["2", "True"]]
    assert (folder / "latest").read_text() == "global_step3"
    assert "DeepSpeed saves to" in log
    assert not (folder / ".libckpt").exists()
    monkeypatch.delenv("LIBCKPT_DISABLE")
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", "/nonexistent/ckptd")
    monkeypatch.setenv("LIBCKPT_OPEN_DEADLINE", "2s")
    broken = jobs.run(2, **given, folder=str(tmp_path / "broken"))
    assert said(broken, 0, "saved") == [["2", "True"]]
    assert said(broken, 0, "losses") == said(log, 0, "losses")
    assert "libckpt" in broken


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_another_number_of_ranks_goes_on_from_libckpts_own_storage(
    jobs, tmp_path, programs, stage
):
    given = {"stage": stage, "dir": str(tmp_path / "dir"), "folder": "/nonexistent"}
    first = jobs.run(2, **given, steps=4, end="close")
    lose_memory(programs)
    again = jobs.run(4, **given, steps=6, seed=2)
    assert check_began(again, 4, first) == 4
    assert f"libckpt: resumes step 4 from {tmp_path / 'dir'}" in again


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_stock_deepspeed_loads_the_universal_layout_on_another_number_of_ranks(
    jobs, tmp_path, stage
):
    given = {"stage": stage, "folder": str(tmp_path / "folder")}
    whole = jobs.run(2, **given, universal_at=4)
    assert (tmp_path / "folder" / "latest_universal").read_text() == "global_step4_universal"
    for ranks in (1, 2):
        log = jobs.run(ranks, **given, stock=True, universal=True)
        assert said(log, 0, "began at") == [["4", states(whole)[4]]]
        assert losses(log) == pytest.approx(losses(whole), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_stock_deepspeed_reads_the_folders_of_each_stage(jobs, tmp_path, stage):
    folder = tmp_path / "folder"
    given = {"stage": stage, "folder": str(folder)}
    log = jobs.run(2, **given, save_at=[2, 4], steps=6, end="wait")
    again = jobs.run(2, **given, stock=True, steps=6)
    assert said(again, 0, "began at") == [["4", states(log)[4]]]
    assert losses(again) == losses(log)


@pytest.mark.slow
def test_the_example_kills_and_resumes_itself():
    example = pathlib.Path(__file__).parents[2] / "examples" / "deepspeed_trainer.py"
    done = subprocess.run([sys.executable, example, "--demo"], capture_output=True, text=True,
                          timeout=900, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("the losses are the same") == 2
    assert "libckpt: resumes step" in done.stderr


def test_room_for_a_restored_state_is_written_once(monkeypatch):
    """By the restore; but for padding, which nobody captured."""
    torch = pytest.importorskip("torch")
    from libckpt.deepspeed import _layout, _optimizer

    monkeypatch.setattr(torch, "empty_like",
                        lambda like, dtype: torch.full_like(like, 7, dtype=dtype))  # fmt: skip
    parts = [_layout.Part("b", (3,), 0, 5, 3), _layout.Part("a", (4,), 0, 0, 4)]
    room = _optimizer._room(_layout.Flat(torch.ones(10), 0, parts), torch.float64)
    assert room.dtype == torch.float64
    assert room.tolist() == [7] * 4 + [0] + [7] * 3 + [0] * 2


class Failing:
    """An engine with two weights and Adam, and a step for it whose restore fails."""

    def __init__(self, monkeypatch, error):
        import torch

        from libckpt.deepspeed import _layout, _state

        monkeypatch.setattr(_state, "targets", lambda *arguments: {})
        weights = [torch.nn.Parameter(torch.ones(count)) for count in (2, 3)]
        self.optimizer = torch.optim.Adam(weights)
        flats = [_layout.Flat(weight, 0, []) for weight in weights]
        self._layout = types.SimpleNamespace(optimizer=self.optimizer, zero=self.optimizer,
                                             flats=flats, arrays=list)  # fmt: skip
        engine = types.SimpleNamespace(optimizer=self.optimizer)
        self._state = _state.EngineState(engine, self._layout)
        own = {"tensors": dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.float32),
               "values": {"step": torch.tensor(9.0)}}  # fmt: skip
        saved = {"of_parameters": {}, "states": [own], "groups": [{}]}
        self._found = types.SimpleNamespace(items={"optimizer": saved}, step=9)
        self._error = error

    def step(self):
        for weight in self.optimizer.param_groups[0]["params"]:
            weight.grad = weight.detach().clone()
        self.optimizer.step()

    def states(self):
        return [dict(state) for state in self.optimizer.state.values()]

    def restore(self, *arguments, **options):
        raise self._error

    def give(self):
        self._state.give(self, self._found)


@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_restore_that_fails_leaves_the_optimizer_as_it_was(monkeypatch, has_stepped):
    """Its moments and its count of steps: with one of the two alone the next step misleads."""
    failing = Failing(monkeypatch, libckpt.Unavailable("the daemon is gone"))
    if has_stepped:
        failing.step()
    before = failing.states()
    counts = [float(state["step"]) for state in before]
    with pytest.raises(libckpt.Unavailable):
        failing.give()
    after = failing.states()
    assert [state.keys() for state in after] == [state.keys() for state in before]
    assert all(one[key] is other[key] for one, other in zip(before, after) for key in one)
    assert [float(state["step"]) for state in after] == counts


def test_a_restore_that_fails_in_its_middle_lets_the_optimizer_begin_anew(monkeypatch, caplog):
    from libckpt.core import _restorer

    failing = Failing(monkeypatch, libckpt.Corruption(f"a bad copy; {_restorer.OVERWRITTEN}"))
    failing.step()
    with pytest.raises(libckpt.Corruption):
        failing.give()
    assert failing.states() == []
    assert "the optimizer begins anew, without moments and with step 0" in caplog.text
    failing.step()
    assert [float(state["step"]) for state in failing.states()] == [1, 1]


@pytest.mark.parametrize("error", [KeyError("last_epoch"), KeyboardInterrupt()])
def test_after_another_error_in_its_middle_nobody_knows_what_was_written(monkeypatch, error):
    """As one that the scheduler's load_state_dict raises."""
    failing = Failing(monkeypatch, error)
    failing.step()
    with pytest.raises(type(error)):
        failing.give()
    assert failing.states() == []


def test_room_that_is_not_all_to_be_had_leaves_no_foreign_bytes_either(monkeypatch):
    from libckpt.deepspeed import _optimizer

    def room(flat, dtype):
        if flat.tensor.numel() > 2:
            raise MemoryError("the second one has no room")
        return torch.full_like(flat.tensor, float("nan"), dtype=dtype)

    torch = pytest.importorskip("torch")
    monkeypatch.setattr(_optimizer, "_room", room)
    failing = Failing(monkeypatch, None)
    with pytest.raises(MemoryError):
        failing.give()
    assert failing.states() == []


def test_the_global_batch_is_kept_by_accumulation():
    deepspeed_door = pytest.importorskip("libckpt.deepspeed")
    steps = [deepspeed_door.accumulation_for(64, 4, ranks) for ranks in (1, 2, 4, 8, 16)]
    assert steps == [16, 8, 4, 2, 1]
    with pytest.raises(ValueError, match="3 rank"):
        deepspeed_door.accumulation_for(64, 4, 3)
