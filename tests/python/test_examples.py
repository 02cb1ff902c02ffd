"""Goal: the examples do what they say, as they are printed.

Method: each is run with --demo, which kills and resumes it, in less than a minute on a machine of
its own; here it has others beside it.
"""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SECONDS_MAX = 900  # Only so that one that hangs ends.
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def run(script):
    found = subprocess.run([sys.executable, EXAMPLES / script, "--demo"], capture_output=True,
                           text=True, timeout=SECONDS_MAX, check=False)  # fmt: skip
    assert found.returncode == 0, (found.stdout + found.stderr)[-4000:]
    return found.stdout


@pytest.mark.slow
def test_the_loop_of_torch_trainer_ends_as_if_it_had_not_been_killed():
    said = run("torch_trainer.py")
    assert said.count("--- kill -9") == 4
    assert said.count("the same as if nothing had happened") == 2
    assert "stock torch.load reads 0.weight" in said


@pytest.mark.slow
def test_stock_transformers_ends_what_transformers_trainer_began():
    pytest.importorskip("transformers")
    said = run("transformers_trainer.py")
    assert said.count("--- kill -9") == 3
    assert said.count("the same as if nothing had happened") == 1


@pytest.mark.slow
def test_two_ranks_of_transformers_trainer_are_sharded_by_deepspeed(runtime, tmp_path):
    pytest.importorskip("deepspeed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               EXAMPLES / "transformers_trainer.py", "--zero", "2", "--steps", "20",
               "--dir", tmp_path / "dir"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("final weights") == 1
    parts = (tmp_path / "dir" / "checkpoint-20" / "global_step20").glob("zero_pp_rank_?_mp_rank_*")
    assert len(list(parts)) == 2


@pytest.mark.slow
def test_megatron_trainer_goes_on_after_a_rank_was_killed_and_with_another_number():
    pytest.importorskip("megatron.core")
    said = run("megatron_trainer.py")
    assert "the loss is the same" in said
    assert "1 rank(s), from step 40" in said or "1 rank(s), from step 39" in said
    assert "folders: iter_0000020 iter_0000040" in said


@pytest.mark.slow
def test_a_killed_group_of_torchft_trainer_heals_from_the_other_ones_daemon():
    pytest.importorskip("torchft")
    said = run("torchft_trainer.py")
    assert said.count("--- kill -9") == 1
    assert said.count("group 1: healed at step") == 3
    assert "the weights are the same" in said


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["accelerate", "lightning", "torch_checkpointing"])
def test_a_killed_loop_of_these_frameworks_ends_as_if_it_had_not_been(framework):
    pytest.importorskip(framework)
    said = run(f"{framework}_trainer.py")
    assert said.count("--- kill -9") == 3
    assert said.count("the same as if nothing had happened") == 1


@pytest.mark.slow
def test_a_killed_rank_of_torchtitan_trainer_goes_on_and_torchtitan_reads_its_folders():
    pytest.importorskip("torchtitan")
    said = run("torchtitan_trainer.py")
    assert "rank 1 is killed at step 27" in said
    # Its steps take milliseconds: on a busy machine some find no Slot.
    steps = [int(step) for step in re.findall(r"2 rank\(s\), from step (\d+)", said)]
    assert steps[:2] == [0, 0] and 20 <= steps[2] <= 27 and steps[3:] == [35, 35]
    assert said.count("the weights are the same") == 2
