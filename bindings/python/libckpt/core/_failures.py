"""Failures: those of one session are counted, and each kind is logged now and then."""

import contextlib
import logging
import re
import time

from libckpt import errors
from libckpt.core import _settings

logger = logging.getLogger("libckpt")

LOGGED_EVERY, KNOWN_MAX = 60.0, 64  # Seconds; kinds.
_DIGITS = re.compile(r"\d+")


class Failures:
    def __init__(self, job, options):
        self._job = job
        in_file = options.get("log_file_path") or _settings.configured("log_file_path")
        self._is_on_terminal = not in_file  # The library's own lines.
        self._is_logged = False  # By the library.
        self._logged_at = {}  # By kind.
        self.count = 0
        self.last = ""  # In words.
        self._of_newest_save = ""  # In words; empty from the next save that starts on.

    def log_not_found(self, error, wanted, rank):
        """For a restore that has a default. A path or a step may be mistyped; one rank logs for
        all."""
        if wanted is not None and rank == 0:
            logger.warning("libckpt: job %s: nothing is restored: %s", self._job, error)

    def of_save(self, error):
        self.count += 1
        self._of_newest_save = self.last = _in_words(error)
        # Without handlers Python writes it to the terminal, where the library has.
        if not self._is_logged or not self._is_on_terminal or logger.hasHandlers():
            self.log(error)
        self._is_logged = False

    def end_with(self, outcome):
        """Call it with that of a save that did not fail."""
        if outcome == "started":
            self._of_newest_save = ""
        return outcome

    @contextlib.contextmanager
    def given_up(self, tensors, step):
        """For a save of a step that is due. The library knows its own errors; it learns of one
        before it was asked, so that no rank waits for the step, and close() knows of it."""
        tensors.asked = None  # After a restore a step comes again.
        try:
            yield
        except Exception as error:
            was_asked = tensors.asked == step
            self._is_logged = was_asked and isinstance(error, errors.CheckpointError)
            if not was_asked:
                with contextlib.suppress(errors.CheckpointError):  # It was closed.
                    tensors.client.give_up(step, _in_words(error))
            raise

    def added_to(self, status):
        """The library's counts with those of this session. `notice` has the library's own word on
        what is degraded: that of this session may quote anything."""
        status["failed"] = max(status.get("failed", 0), self.count)
        status["last_error"] = status.get("last_error") or self.last
        trouble = f"saves fail: {self._of_newest_save}" if self._of_newest_save else ""
        status["notice"] = status.get("degraded") or ""
        status["degraded"] = "; ".join(filter(None, [status["notice"], trouble]))
        return status

    def log(self, error):
        self.last = _in_words(error)
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


def _in_words(error):
    return str(error) or repr(error)
