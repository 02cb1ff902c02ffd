"""Goal: a Trainer that DeepSpeed or FSDP2 shards goes on from memory or folders as if its ranks had
not been killed, and stock Transformers reads its folders.

Method: as in test_transformers.py, with two ranks over gloo. Where the number of ranks stays, all
is compared to the last bit; else sums have another order, and losses agree to some digits.
"""

import os
import random
import shutil
import subprocess

import pytest

pytest.importorskip("transformers")
pytest.importorskip("deepspeed")

from test_transformers import first_step, folders, kill_when_held, results, run  # noqa: E402

from libckpt.core.files import _publish_queue  # noqa: E402
from libckpt.core.files._disk import files_of  # noqa: E402
from libckpt.transformers._folders import problem_of  # noqa: E402

STEPS = 20
KILLS = int(os.environ.get("CKPT_PYTHON_KILLS", "12"))


def deepspeed(stage, **more):
    zero = {"stage": stage}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 40
    config = {"zero_optimization": zero, "zero_allow_untested_optimizer": True, **more}
    auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
            "gradient_clipping")  # fmt: skip
    return {"deepspeed": {**config, **dict.fromkeys(auto, "auto")}}


def fsdp(kind):
    return {"fsdp": True, "fsdp_config": {
        "version": 2, "state_dict_type": f"{kind}_STATE_DICT",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": ["GPT2Block"],
    }}  # fmt: skip


BF16 = {"bf16": {"enabled": True}}
WARMUP = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")
SCHEDULER = {"scheduler": {"type": "WarmupLR", "params": WARMUP}}
QUICK = [pytest.param(fsdp("SHARDED"), id="fsdp")]
SLOW = [pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in {
    "zero-0": deepspeed(0),
    "zero-1": {**deepspeed(1, **SCHEDULER), "warmup_steps": 10},
    "zero-2": deepspeed(2),
    "zero-3": deepspeed(3),
    "zero-2-bf16": {**deepspeed(2, **BF16), "bf16": True},
    "zero-3-accumulating": {**deepspeed(3), "gradient_accumulation_steps": 2},
    "fsdp-full": fsdp("FULL"),
    "fsdp-accumulating": {**fsdp("SHARDED"), "gradient_accumulation_steps": 2},
}.items()]  # fmt: skip
SOME = [pytest.param(deepspeed(2), id="zero-2"), *QUICK]


def train(trainer, output, kind="wrapper", ranks=2, **options):
    """Any number of ranks, which share the same global batch."""
    batch = options.pop("batch", 4)
    given = {"ranks": ranks, "per_device_train_batch_size": batch // ranks, "max_steps": STEPS}
    return run(trainer, output, kind, **{**given, **options})


def lose_memory(programs):
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)


def by_daemon(output):
    """Files of the last folder that are links to those of a step of libckpt's; none with FSDP."""
    ends = ("_states.pt", "model.safetensors")
    return [file for file in files_of(output / "checkpoint-20") if file.endswith(ends)]


def losses(said):
    (line,) = [line for line in said.splitlines() if line.startswith("each ")]
    return [float(word) for word in line.split()[1:]]


@pytest.mark.parametrize("case", QUICK + SLOW)
def test_killed_ranks_go_on_from_memory_and_stock_reads_the_folders(trainer, tmp_path, case):
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    output = tmp_path / "output"
    assert kill_when_held(train(trainer, output, resume=True, hold=8, **case)) == 8
    said = train(trainer, output, resume=True, **case).finish()
    assert "from own memory" in said
    assert "leaked" not in said  # As nanobind says at the end of a process.
    assert first_step(said) == 9
    assert results(said) == results(whole)
    assert folders(output) == folders(tmp_path / "stock") == [15, 20]
    for number in (15, 20):
        ours, theirs = (tmp_path / kind / f"checkpoint-{number}" for kind in ("output", "stock"))
        assert files_of(ours) == files_of(theirs)
        assert problem_of(ours) is None
    assert {os.stat(output / "checkpoint-20" / file).st_nlink for file in by_daemon(output)} <= {2}
    shutil.rmtree(output / "checkpoint-20")
    stock = train(trainer, output, "stock", resume=True, **case).finish()
    assert first_step(stock) == 16
    assert results(stock) == results(whole)


def test_disabled_it_is_stock_transformers(trainer, tmp_path, monkeypatch):
    case = {**deepspeed(1), "max_steps": 5}
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    said = train(trainer, tmp_path / "output", **case).finish()
    stock = train(trainer, tmp_path / "stock", "stock", **case).finish()
    assert results(said) == results(stock)
    ours, theirs = tmp_path / "output", tmp_path / "stock"
    assert files_of(ours) == files_of(theirs)
    assert "libckpt" not in said


def test_half_of_a_sharded_folder_is_told_from_a_whole_one(tmp_path):
    parts = ("global_step5", "pytorch_model_fsdp_0", "optimizer_0")
    (tmp_path / "trainer_state.json").write_text("{}")
    for part in parts:
        (tmp_path / part).mkdir()
    assert problem_of(tmp_path) is not None
    (tmp_path / "latest").write_text("global_step5")
    for part in parts[1:]:
        assert problem_of(tmp_path) is not None
        (tmp_path / part / ".metadata").touch()
    assert problem_of(tmp_path) is None
    (tmp_path / parts[0] / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_text("half")
    assert "zero_pp_rank_0" in problem_of(tmp_path)


def test_at_the_end_a_trainer_that_deepspeed_keeps_has_no_session(runtime, tmp_path, monkeypatch):
    from libckpt import init
    from libckpt.adapters.torch._file_sets import FileSets
    from libckpt.transformers import _memory, _sharded_folders

    memory = _memory.TrainerMemory.__new__(_memory.TrainerMemory)
    folders = _sharded_folders.ShardedFolders(None, {})
    monkeypatch.setattr(_memory, "_all", {memory})
    memory.session, folders._sets = init("job"), {"out": FileSets("test", tmp_path)}
    sessions = [memory.session, folders._sets["out"]._queue.session]
    _sharded_folders._leave()
    _publish_queue._leave()  # It comes later, and publishes what is on its way.
    _memory._leave()
    assert memory.session is None and not folders._sets
    assert all(session.is_closed for session in sessions)


def test_the_ranks_that_saved_a_folder_are_counted(tmp_path):
    from libckpt.deepspeed._folders import ranks_of

    folder = tmp_path / "global_step5"
    folder.mkdir()
    assert ranks_of(tmp_path) is None
    (tmp_path / "latest").write_text("global_step5\n")
    assert ranks_of(tmp_path) is None  # Without ZeRO.
    for rank in range(3):
        (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
        (folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").touch()
    assert ranks_of(tmp_path) == 3


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME)
def test_added_once_the_trainer_was_made_it_captures_all_the_same(trainer, tmp_path, case):
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    output = tmp_path / "output"
    assert kill_when_held(train(trainer, output, "added", hold=8, **case)) == 8
    said = train(trainer, output, "callback", resume=True, **case).finish()
    assert "from own memory" in said and first_step(said) == 9
    assert results(said) == results(whole)


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME)
def test_without_a_daemon_transformers_saves_and_resumes_itself(
    trainer, tmp_path, monkeypatch, case
):
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", "/nonexistent/ckptd")
    monkeypatch.setenv("LIBCKPT_OPEN_DEADLINE", "2s")
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    process = train(trainer, tmp_path / "output", hold=12, **case)
    assert kill_when_held(process) is None
    assert process.log.read_text().count("steps are not captured in memory") == 2  # Once a rank.
    said = train(trainer, tmp_path / "output", resume=True, **case).finish()
    assert first_step(said) == 11
    assert results(said) == results(whole)
    assert not (tmp_path / "output" / ".libckpt" / "sharded" / "sets").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME)
def test_resumed_from_folders_without_the_memory_it_ends_the_same(
    trainer, tmp_path, programs, case
):
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    output = tmp_path / "output"
    assert kill_when_held(train(trainer, output, hold=13, **case)) == 13
    lose_memory(programs)
    said = train(trainer, output, resume=True, **case).finish()
    assert first_step(said) in (6, 11)
    assert f"resumes from {output}" in said or "newest folder" in said or "own memory" not in said
    assert results(said) == results(whole)


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME)
def test_a_folder_that_is_newer_than_memory_is_resumed_from(trainer, tmp_path, case):
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    output = tmp_path / "output"
    kill_when_held(train(trainer, output, hold=8, **case))
    shutil.rmtree(output / ".libckpt")
    for number in folders(output):
        shutil.rmtree(output / f"checkpoint-{number}")
    shutil.copytree(tmp_path / "stock" / "checkpoint-15", output / "checkpoint-15")
    said = train(trainer, output, resume=True, **case).finish()
    assert "checkpoint-15, which is newer than step" in said
    assert first_step(said) == 16
    assert results(said) == results(whole)


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME)
def test_where_memory_cannot_be_restored_all_ranks_take_the_folder(trainer, tmp_path, case):
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    output = tmp_path / "output"
    process = train(trainer, output, hold=13, **case)
    process.wait_until(lambda: folders(output))
    kill_when_held(process)
    newest = folders(output)[-1]
    said = train(trainer, output, "forgetful", resume=True, **case).finish()
    assert "libckpt: resume from memory: there is no module of that name; resumes from" in said
    assert first_step(said) in (newest + 1, newest + 6)  # The next one was on its way.
    assert results(said) == results(whole)
    # The steps from there on; folders have numbers from 100 on.
    assert any(f" step {step} captured in" in said for step in range(newest + 1, STEPS))
    shutil.rmtree(output)
    kill_when_held(train(trainer, output, **case, save_strategy="no", hold=4))
    again = train(trainer, output, "forgetful", resume=True, **case)
    assert again.wait() != 0  # It does not begin anew over what there is.
    assert "there is no module of that name" in again.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("case", [*SOME, pytest.param(deepspeed(3), id="zero-3")])
def test_another_number_of_ranks_goes_on_from_memory(trainer, tmp_path, case):
    case = {**case, "dropout": 0.0}
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    output = tmp_path / "output"
    assert kill_when_held(train(trainer, output, hold=8, **case)) == 8
    process = train(trainer, output, ranks=1, resume=True, hold=13, **case)
    assert kill_when_held(process) == 13
    alone = process.log.read_text()
    assert "2 ranks saved it" in alone and first_step(alone) == 9
    said = train(trainer, output, resume=True, **case).finish()
    assert "1 rank saved it" in said and first_step(said) == 14
    assert "from own memory" in said
    assert losses(said) == pytest.approx(losses(whole), abs=1e-3)
    assert len(losses(said)) == STEPS


@pytest.mark.slow
def test_a_folder_of_other_ranks_is_passed_by_where_there_is_memory(trainer, tmp_path):
    """DeepSpeed cannot load it."""
    case = {**deepspeed(2), "dropout": 0.0, "save_steps": 5}
    output = tmp_path / "output"
    train(trainer, output, **case).finish()
    said = train(trainer, output, ranks=1, resume=True, **case, max_steps=22).finish()
    assert "checkpoint-20 is not resumed from: DeepSpeed wants the 2 rank(s)" in said
    assert first_step(said) <= STEPS
    assert len(losses(said)) == 22


@pytest.mark.slow
@pytest.mark.parametrize("case", [SOME[0], pytest.param(fsdp("FULL"), id="fsdp-full")])
def test_the_best_model_is_loaded_at_the_end_and_its_folder_stays(trainer, tmp_path, case):
    """Stock Transformers hangs here with FSDP's SHARDED_STATE_DICT."""
    case = {**case, "load_best_model_at_end": True, "metric_for_best_model": "loss",
            "eval_strategy": "steps", "eval_steps": 5}  # fmt: skip
    said = train(trainer, tmp_path / "output", **case).finish()
    stock = train(trainer, tmp_path / "stock", "stock", **case).finish()
    assert results(said) == results(stock)
    assert folders(tmp_path / "output") == folders(tmp_path / "stock")


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME)
def test_many_kills_at_random_steps_leave_whole_folders_and_change_nothing(
    trainer, tmp_path, case
):
    case = {**case, "max_steps": 6 * KILLS, "save_steps": 2}
    whole = train(trainer, tmp_path / "stock", "stock", **case).finish()
    output, generator = tmp_path / "output", random.Random(5)
    begun = [0]
    for _ in range(KILLS):
        process = train(trainer, output, resume=True, hold_after=4, **case)  # It waits there.
        begun.append(process.wait_for_number("made "))
        process.wait_until_said(f"made {begun[-1] + generator.randint(0, 3)}\n")
        process.kill()
        assert all(problem_of(output / f"checkpoint-{n}") is None for n in folders(output))
    assert begun == sorted(begun)
    assert begun[-1] > KILLS // 2
    said = train(trainer, output, resume=True, **case).finish()
    assert results(said) == results(whole)
