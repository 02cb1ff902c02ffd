"""Failures: those of one session are counted, and each kind is logged now and then."""

import logging
import re
import time

from libckpt import errors

logger = logging.getLogger("libckpt")

LOGGED_EVERY, KNOWN_MAX = 60.0, 64  # Seconds; kinds.
_DIGITS = re.compile(r"\d+")


class Failures:
    def __init__(self, job):
        self._job = job
        self._logged_at = {}  # By kind.
        self.count = 0
        self.last = ""  # In words.
        self._save = None  # The newest one that failed: its step, and why.

    def log_not_found(self, error, path, rank):
        """For a restore that has a default. The path may be mistyped; one rank logs for all."""
        if path is not None and rank == 0:
            logger.warning("libckpt: job %s: nothing is restored: %s", self._job, error)

    def of_save(self, step, error):
        self.count += 1
        self.log(error)
        self._save = (step, self.last)

    def explained(self, step, error):
        """The same error, with why the save of the step failed, if that is known here."""
        if self._save is None or self._save[0] != step or self._save[1] in str(error):
            return error
        return errors.NotFound(f"{error}: its save failed: {self._save[1]}")

    def added_to(self, status):
        """The library's counts with those of this session."""
        status["failed"] = max(status.get("failed", 0), self.count)
        status["last_error"] = status.get("last_error") or self.last
        return status

    def log(self, error):
        self.last = str(error) or repr(error)
        now = time.monotonic()
        kind = _DIGITS.sub("", self.last)  # The same for another step.
        if now - self._logged_at.get(kind, float("-inf")) < LOGGED_EVERY:
            return
        if len(self._logged_at) >= KNOWN_MAX:
            self._logged_at.clear()
        self._logged_at[kind] = now
        logger.error(
            "libckpt: job %s: %s; training goes on, later failures are counted",
            self._job,
            self.last,
        )
