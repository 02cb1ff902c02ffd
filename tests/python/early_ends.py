"""Trainings that end before they are done, at random instants and in any way, behind any door.

A `door` has start(name, steps), which returns a launch, and made(log) and began(log): by step (and
rank) what was computed, and the step that the ranks began at, or None. A launch has read(),
processes() (by rank) and wait(). The same steps are made in each launch of the job, after what
came before, and compute the same to the last bit, as one that was left alone tells.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import time

SECONDS_MAX = 300  # Only so that one that hangs ends.
STEPS_EACH = (1, 3)  # At least and at most, between two things that happen to a training.
STEPS_PER_LAUNCH = 9  # More than are made before the end comes, on most machines.

KILLED, TERMINATED, INTERRUPTED, RAISES = "killed", "terminated", "interrupted", "raises"
ENDS = (KILLED, TERMINATED, INTERRUPTED, RAISES)
SIGNALS = {KILLED: signal.SIGKILL, TERMINATED: signal.SIGTERM, INTERRUPTED: signal.SIGINT,
           RAISES: signal.SIGUSR1}  # fmt: skip


def is_alive(process):
    """Whether it runs; one that nobody has waited for yet does not."""
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def send(number, processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


class Story:
    """The events of one job, as the seed has them. `ends`: those that its ranks react to."""

    def __init__(self, door, ranks, seed, ends=ENDS):
        self._door, self._ranks, self._ends = door, ranks, ends
        self._chance = random.Random(seed)
        self._launch = None
        self.told = []  # The events so far, for the reader of a failure.

    def _until(self, is_so):
        deadline = time.monotonic() + SECONDS_MAX
        while not is_so():
            assert time.monotonic() < deadline, (self.told, self._launch.read()[-6000:])
            time.sleep(0.002)

    def _until_made(self, step):
        self._until(lambda: self._newest() >= step or self._is_done())

    def _is_done(self):
        """Whether it came to its end before anything happened to it: it was fast, the test slow."""
        if not self._launch.has_ended():
            return False
        assert self._launch.wait() == 0, (self.told, self._launch.read()[-6000:])
        return True

    def _newest(self):
        return max((key[1] for key in self._door.made(self._launch.read())), default=0)

    def tell(self, launches):
        """The launches, one after the other, then one that comes to its end."""
        steps = STEPS_PER_LAUNCH * launches
        launch = self._door.start("whole", steps)
        assert launch.wait() == 0, launch.read()[-6000:]
        expected = self._door.made(launch.read())
        assert {key for key in expected} >= {(0, step) for step in range(1, steps + 1)}
        begun = 0
        for number in range(launches):
            is_memory_lost = number + 1 < launches and self._chance.random() < 0.4
            begun = self._one(steps, begun, is_memory_lost, expected)
            if begun + STEPS_PER_LAUNCH > steps:  # The next one might come to its end before.
                break
        launch = self._launch = self._door.start("job", steps)
        assert launch.wait() == 0, (self.told, launch.read()[-6000:])
        first = self._door.began(launch.read())
        self.told.append(f"began at {first}")
        assert first >= max(begun, 1), self.told
        found = self._door.made(launch.read())
        assert found == {key: expected[key] for key in expected if key[1] > first}, self.told

    def _one(self, steps, begun, is_memory_lost, expected):
        """One launch up to its end. Returns the step that the next one begins at, or later."""
        launch = self._launch = self._door.start("job", steps)
        self._until(lambda: self._door.began(launch.read()) is not None or self._is_done())
        first = self._door.began(launch.read())
        self.told.append(f"began at {first}")
        assert first >= begun, self.told
        self._until_made(first + self._chance.randint(*STEPS_EACH))
        if is_memory_lost:
            self.told.append("daemon killed")
            state = json.loads((self._door.runtime() / "ckptd.json").read_text())
            send(signal.SIGKILL, [state["pid"]])
            self._until_made(self._newest() + self._chance.randint(*STEPS_EACH))
        if not self._is_done():
            self._end(launch)
        found = self._door.made(launch.read())
        assert found == {key: expected[key] for key in found}, self.told
        return 0 if is_memory_lost else first

    def _end(self, launch):
        """A rank that is asked to end does so by itself; others are killed, as launchers do."""
        self._until(lambda: len(launch.processes()) == self._ranks)
        end, processes = self._chance.choice(self._ends), launch.processes()
        hit = list(processes.values())
        if end in (KILLED, RAISES) and self._chance.random() < 0.7:
            hit = [processes[self._chance.randrange(self._ranks)]]
        self.told.append(f"{len(hit)} of {self._ranks} {end}")
        send(SIGNALS[end], hit)
        self._until(lambda: not any(map(is_alive, hit)))
        send(signal.SIGKILL, processes.values())
        if launch.wait() != 0:  # It was not done in the last moment.
            assert "Traceback" in launch.read() or end not in (INTERRUPTED, RAISES), self.told
