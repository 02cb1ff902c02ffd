"""Goal: trainings of JAX that are killed at random instants end as if they had not been, with
libckpt.jax.Checkpointer and with Levanter's Checkpointer.

Method: the trainings of test_jax.py. All processes are killed as soon as a random one has made a
random step, while captures and folders are under way. Each step that any launch made, and the end,
has the loss and the bits of a training that nobody kills.
"""

import os
import random
import time

import pytest

pytest.importorskip("jax")

import test_jax  # noqa: E402

SEED = int(os.environ.get("CKPT_PYTHON_SEED", "1"))
KILLS = [2, 12]
STEPS_EACH = (3, 6)  # At least and at most, before it is killed.


def arguments_of_jax(scratch, name, steps):
    return name, steps, scratch / name


def arguments_of_levanter(scratch, name, steps):
    return scratch / name, steps


KINDS = {"jax": ("jax_steps.py", arguments_of_jax),
         "levanter": ("levanter_steps.py", arguments_of_levanter)}  # fmt: skip


@pytest.fixture(params=KINDS)
def training(request, runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("WAITS", "60")
    found = test_jax.Training(tmp_path)
    found.program, found.arguments = KINDS[request.param]
    yield found
    found.stop()


def kill_at(training, process, count):
    """When the process has made so many steps; returns what it began at."""
    ends = time.monotonic() + test_jax.SECONDS_MAX
    while len(training.said("step")[process]) < count:
        assert training.is_running(), training.read()
        assert time.monotonic() < ends, training.read()
        time.sleep(0.002)
    training.stop()
    return int(training.said("began at")[process][0][0])


@pytest.mark.slow  # test_jax_early_ends.py has it in the quick form.
@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_of_jax(training, tmp_path, processes, kills):
    steps = (kills + 4) * STEPS_EACH[1]

    def start(name):
        return training.start(processes, "2x2", *training.arguments(tmp_path, name, steps))

    expected = start("whole").finish()
    chance, begun = random.Random(SEED), []
    for _ in range(kills):
        start("job")
        process, count = chance.randrange(processes), chance.randint(*STEPS_EACH)
        begun.append(kill_at(training, process, count))
        for said in training.said("step"):
            made = {int(step): tuple(words) for step, *words in said if len(words) == 2}
            assert made == {step: expected[step] for step in made}
        if steps in made:  # It was fast, and this test slow.
            break
    made = start("job").finish()
    begun.append(training.began()[0])
    assert begun == sorted(begun)
    assert begun[-1] > 0
    assert made == {step: expected[step] for step in range(begun[-1] + 1, steps + 1)}
