"""Between: the steps between the captures of an interval in steps, which cost next to nothing.

The library hears of some of them, so that a restore can say how many steps were lost: of the first
one behind a capture, and then of fifty in a second at most.
"""

import contextlib
import time

from libckpt import errors

SECONDS = 0.02  # As the library itself waits between two reports.


class Between:
    def __init__(self, interval, client, turn):
        self._interval, self._client, self._turn = interval, client, turn
        self._reports_at = 0.0

    @property
    def may_divide_ranks(self):
        """By time, one rank may find a step due that another one does not."""
        return type(self._interval) is not int

    def has(self, step):
        """Whether the interval is in steps, and this is none of them."""
        interval = self._interval
        if type(interval) is int and interval > 0 and step % interval != 0:
            self.report(step)
            return True
        self._reports_at = 0.0
        return False

    def report(self, step):
        now = time.monotonic()
        if now < self._reports_at:
            return
        self._reports_at = now + SECONDS
        with contextlib.suppress(errors.CheckpointError), self._turn:  # It is only a report.
            self._client.is_due(step)
