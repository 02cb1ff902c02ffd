"""Goal: a job goes on with other numbers of ranks, one after the other, whenever its ranks die: all
elements come back as the last committed step had them.

Method: real processes divide a table among them, and all of them are killed: before the restore,
after it, and once a step is committed. The daemon's memory is all that outlives them.
"""

import os
import re
import signal

import pytest


class Worlds:
    def __init__(self, trainer):
        self._trainer = trainer

    def run(self, ranks, end, *words):
        """Starts ranks, kills all of them once each has said the words, and returns the output."""
        process = self._trainer("worlds.py", str(ranks), end)
        process.wait_until(lambda: process.log.read_text().count(" ".join(words)) == ranks)
        for number in re.findall(r"^process (\d+)$", process.log.read_text(), re.MULTILINE):
            os.kill(int(number), signal.SIGKILL)
        return process.finish()


@pytest.fixture
def worlds(trainer):
    return Worlds(trainer)


def restored(step, saved_by):
    return f"restored {step} saved by {saved_by} same"


def test_four_ranks_then_three_then_five_with_kills_in_between(worlds):
    assert worlds.run(4, "committed", "committed 1").count("nothing") == 4
    worlds.run(3, "asks", "asks")
    worlds.run(3, "restored", restored(1, saved_by=4))  # Before they commit a step of their own.
    output = worlds.run(3, "committed", "committed 2")
    assert output.count(restored(1, saved_by=4)) == 3
    worlds.run(5, "asks", "asks")
    worlds.run(5, "restored", restored(2, saved_by=3))
    output = worlds.run(5, "committed", "committed 3")
    assert output.count(restored(2, saved_by=3)) == 5
    worlds.run(3, "restored", restored(3, saved_by=5))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 6, 8])
def test_any_number_of_ranks_has_what_four_had(worlds, count):
    worlds.run(4, "committed", "committed 1")
    worlds.run(count, "restored", restored(1, saved_by=4))
