"""Goal: a training that ends before it is done, in any way, goes on from where it was, and computes
what it would have computed: behind the doors of accelerate, DeepSpeed and Megatron.

Method: real ranks of the trainers of the other tests. At random, one rank or all of them are
killed, terminated, interrupted as by Ctrl-C, or their loop raises; before that the daemon may be
killed. early_ends.py has the story. CKPT_PYTHON_SEED chooses it.
"""

import os
import re

import pytest

torch = pytest.importorskip("torch")

import test_accelerate  # noqa: E402
import test_deepspeed  # noqa: E402
import test_megatron  # noqa: E402
from early_ends import Story  # noqa: E402
from test_ranks import said  # noqa: E402

jobs, job = test_deepspeed.jobs, test_megatron.job

SEED = int(os.environ.get("CKPT_PYTHON_SEED", "1"))
LAUNCHES = [2, pytest.param(8, marks=pytest.mark.slow)]
RANKS = 2


class Launch:
    """The ranks were forked by a trainer."""

    def __init__(self, trainer):
        self._trainer = trainer
        self.wait = trainer.wait

    def read(self):
        return self._trainer.log.read_text()

    def has_ended(self):
        return self._trainer.poll() is not None

    def processes(self):
        lines = re.findall(r"^process (\d+) (\d+)$", self.read(), re.M)
        return {int(rank): int(process) for rank, process in lines}


class Door:
    def __init__(self, start, runtime):
        self._start, self._runtime = start, runtime

    def start(self, name, steps):
        return Launch(self._start(name, steps))

    def runtime(self):
        return self._runtime

    def made(self, log, word="made"):
        """By rank and step, the rest of the line."""
        return {(rank, int(step)): rest for rank in range(RANKS)
                for step, *rest in filter(None, said(log, rank, word))}  # fmt: skip

    def began(self, log, word="began at"):
        found = said(log, 0, word)
        return int(found[0][0]) if found else None


@pytest.mark.parametrize("launches", LAUNCHES)
def test_a_loop_of_accelerate(trainer, runtime, tmp_path, launches):
    def start(name, steps):
        options = {"ranks": RANKS, "steps": steps, "waits": 60, "every": 7}
        return test_accelerate.run(trainer, tmp_path / name, **options)

    door = Door(start, runtime)
    door.began = lambda log: Door.began(door, log, "began")
    Story(door, RANKS, SEED).tell(launches)


@pytest.mark.parametrize("launches", LAUNCHES)
@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.slow
def test_an_engine_of_deepspeed(jobs, runtime, stage, launches):
    def start(name, steps):
        return jobs.start(RANKS, job=name, stage=stage, steps=steps, folder="/nonexistent",
                          waits=60)  # fmt: skip

    Story(Door(start, runtime), RANKS, SEED + 1).tell(launches)


@pytest.mark.parametrize("launches", LAUNCHES)
def test_ranks_of_megatron(job, tmp_path, launches):
    def start(name, steps):
        return job.start(RANKS, name, steps, dump=None)

    door = Door(start, tmp_path / "A")  # The runtime directory of that node.
    door.made = lambda log: Door.made(door, log, "loss")
    Story(door, RANKS, SEED + 2).tell(launches)
