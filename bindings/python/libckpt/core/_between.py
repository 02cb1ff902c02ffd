"""Between: the steps between two captures, where the interval is in steps.

Such a step costs next to nothing. The library hears of some of them, so that a restore can say how
many steps were lost: of the first one behind a capture, and then of fifty in a second at most.
"""

import contextlib
import time

from libckpt import errors
from libckpt.core import _settings

SECONDS = 0.02  # As the library itself waits between two reports.


class Between:
    def __init__(self, options, client, turn):
        self._steps, self._client, self._turn = _settings.steps_between(options), client, turn
        self._is_disabled = _settings.is_disabled(options)
        self._reports_at = 0.0

    @property
    def may_divide_ranks(self):
        """By time, one rank may find a step due that another one does not."""
        return self._steps is None and not self._is_disabled

    def has(self, step):
        """Whether the interval is in steps, and this is none of them."""
        if self._steps and step % self._steps != 0:
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
