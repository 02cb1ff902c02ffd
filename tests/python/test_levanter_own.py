"""Goal: a training by Levanter's own Trainer that is killed goes on as if it had not been.

Method: Levanter as a whole, in an environment of its own (tests/run.sh python --deep). The training
is killed after random steps. Each step that any launch made has the loss, bit by bit, of a training
that nobody kills: weights, optimizer, key and data position come back.
"""

import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

pytest.importorskip("levanter.trainer", exc_type=ImportError)

TRAINER = pathlib.Path(__file__).parent / "trainers" / "levanter_own.py"
SECONDS_MAX = 300
STEPS = 40
KILLS = 3


class Training:
    """One launch at a time; each has a log of its own."""

    def __init__(self, scratch):
        self._scratch, self._count = scratch, 0

    def start(self, name):
        self._count += 1
        self._log = self._scratch / f"run-{self._count}.log"
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, TRAINER, self._scratch / name, str(STEPS)], stdout=output,
                stderr=subprocess.STDOUT, cwd=self._scratch,
                env={**os.environ, "JAX_PLATFORMS": "cpu", "WANDB_MODE": "disabled"},
            )  # fmt: skip
        return self

    def read(self):
        return self._log.read_text()

    def began(self):
        return next((int(line.split()[-1]) for line in self.read().splitlines()
                     if line.startswith("began at ")), None)  # fmt: skip

    def steps(self):
        words = [line.split() for line in self.read().splitlines() if line.startswith("step ")]
        return {int(step): loss for _, step, loss in words}

    def finish(self):
        assert self._process.wait(SECONDS_MAX) == 0, self.read()[-6000:]
        return self.steps()

    def kill_after(self, count):
        ends = time.monotonic() + SECONDS_MAX
        while len(self.steps()) < count:
            assert self._process.poll() is None, self.read()[-6000:]
            assert time.monotonic() < ends, self.read()[-6000:]
            time.sleep(0.01)
        self.stop()

    def stop(self):
        self._process.kill()
        self._process.wait()


@pytest.mark.slow
def test_a_training_of_levanter(runtime, tmp_path):
    training = Training(tmp_path)
    expected = training.start("whole").finish()
    assert len(expected) >= STEPS - 2
    chance, begun = random.Random(1), []
    try:
        for _ in range(KILLS):
            training.start("job").kill_after(chance.randint(3, 6))
            begun.append(training.began())
            made = training.steps()
            assert made == {step: expected[step] for step in made}
        made = training.start("job").finish()
    finally:
        training.stop()
    begun.append(training.began())
    assert begun == sorted(begun)
    assert begun[1] > 0
    assert made == {step: expected[step] for step in made}
    assert max(made) == max(expected)
