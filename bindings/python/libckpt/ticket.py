"""Ticket: the result of one save, and the level that its step has reached since."""

from libckpt.errors import NotFound

LEVELS = ("captured", "replicated", "committed", "durable")


_WORDS = {
    "not_due": "was not due by save_mem_interval: call save() to have it all the same",
    "skipped_no_slot": "was skipped, as all Slots are in use or a GPU still copies the step before",
    "skipped_unavailable": "was skipped, as the daemon or its memory could not be had just then",
    "skipped_by_agreement": "was skipped, as the ranks had agreed on a later step",
    "disabled": "did nothing, as libckpt is disabled (LIBCKPT_DISABLE, or the option)",
    "failed": 'failed: session.counts()["last_error"] says why',
}


def outcome_text(outcome):
    """The outcome in words that follow "the save"."""
    return _WORDS.get(outcome, f"answered {outcome}")


class Future:
    """One level of one step."""

    def __init__(self, session, step, outcome, level):
        self._session, self._step, self._outcome, self._level = session, step, outcome, level

    def result(self, timeout=60.0):
        """Waits until the step, or a newer one, has reached the level: at most so many seconds.

        Raises NotFound at once when the save did not start, Unavailable when the time is over.
        """
        if self._outcome != "started":
            raise NotFound(
                f"step {self._step} will not be {self._level}: its save "
                f"{outcome_text(self._outcome)}"
            )
        self._session.wait(self._step, self._level, timeout)

    def done(self):
        """Whether it has; never waits."""
        newest = self._session.counts()[self._level]
        return newest is not None and newest >= self._step


class Ticket:
    """The result of one call of save: `outcome`, and a Future for each level."""

    def __init__(self, session, step, outcome, exposed_seconds):
        self.step = step
        self.outcome = outcome  # "started", "not_due", "skipped_...", "failed", "disabled".
        self.exposed_seconds = exposed_seconds  # The call's cost to the training thread.
        self.captured = Future(session, step, outcome, "captured")
        self.replicated = Future(session, step, outcome, "replicated")
        self.committed = Future(session, step, outcome, "committed")
        self.durable = Future(session, step, outcome, "durable")

    def __bool__(self):
        return self.outcome == "started"

    def __repr__(self):
        return f"Ticket(step={self.step}, {self.outcome}, {self.exposed_seconds * 1e3:.1f} ms)"
