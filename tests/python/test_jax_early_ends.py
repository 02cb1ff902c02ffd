"""Goal: a training of JAX that ends before it is done, in any way, goes on from where it was, and
computes what it would have computed: with libckpt.jax.Checkpointer and with Levanter's.

Method: as in test_early_ends.py. Where there is more than one process, JAX itself takes SIGTERM for
a notice, and a process that ends by an exception stays for the others, as long as JAX is told. Most
are killed only there.
"""

import os

import pytest

pytest.importorskip("jax")

import early_ends  # noqa: E402
import test_jax  # noqa: E402
import test_jax_kills  # noqa: E402
from early_ends import Story  # noqa: E402

SEED = int(os.environ.get("CKPT_PYTHON_SEED", "1"))
training = test_jax_kills.training


class Launch:
    def __init__(self, training):
        self._training = training
        self._processes = list(training._processes)
        training._processes = []

    def read(self):
        return "\n".join(self._training.read())

    def has_ended(self):
        return any(process.poll() is not None for process in self._processes)

    def processes(self):
        return {rank: process.pid for rank, process in enumerate(self._processes)}

    def wait(self):
        return max(abs(process.wait(test_jax.SECONDS_MAX)) for process in self._processes)


class Door:
    def __init__(self, training, processes, scratch, runtime):
        self._training, self._processes = training, processes
        self._scratch, self._runtime = scratch, runtime
        self._launches = []

    def start(self, name, steps):
        arguments = self._training.arguments(self._scratch, name, steps)
        self._training.start(self._processes, "2x2", *arguments)
        self._launches.append(Launch(self._training))
        return self._launches[-1]

    def runtime(self):
        return self._runtime

    def made(self, log):
        return {(rank, int(words[2])): words[3:] for rank, words in self._lines(log, "step")
                if len(words) == 5}  # fmt: skip

    def began(self, log):
        found = [int(words[3]) for _, words in self._lines(log, "began at") if len(words) == 5]
        return found[0] if found else None

    def _lines(self, log, word):
        for line in log.splitlines():
            for rank in range(self._processes):
                if line.startswith(f"p{rank} {word} "):
                    yield rank, line.split()

    def stop(self):
        for launch in self._launches:
            for process in launch._processes:
                process.kill()
                process.wait()


@pytest.mark.parametrize("launches", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_training_of_jax(training, tmp_path, runtime, processes, launches):
    door = Door(training, processes, tmp_path, runtime)
    ends = early_ends.ENDS if processes == 1 else (early_ends.KILLED,)
    try:
        Story(door, processes, SEED, ends).tell(launches)
    finally:
        door.stop()


@pytest.mark.slow  # The others wait in their next exchange until JAX ends all.
def test_two_processes_of_which_one_raises(training, tmp_path, runtime, monkeypatch):
    monkeypatch.setenv("SHUTDOWN_TIMEOUT", "15")
    door = Door(training, 2, tmp_path, runtime)
    try:
        Story(door, 2, SEED, (early_ends.RAISES,)).tell(2)
    finally:
        door.stop()
