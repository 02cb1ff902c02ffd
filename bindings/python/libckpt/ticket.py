"""Ticket: what became of one save, and where its step has got to since."""

LEVELS = ("captured", "replicated", "committed", "durable")


class Future:
    """One level of one step."""

    def __init__(self, session, step, level):
        self._session, self._step, self._level = session, step, level

    def result(self, timeout):
        """Waits until the step, or a newer one, has reached the level."""
        self._session.wait(self._step, self._level, timeout)

    def done(self):
        """Whether it has; never waits."""
        newest = self._session.status()[self._level]
        return newest is not None and newest >= self._step


class Ticket:
    """What became of one call of save: `outcome`, and a Future for each level."""

    def __init__(self, session, step, outcome, exposed_seconds):
        self.step = step
        self.outcome = outcome  # "started", "not_due", "skipped_...", "failed", "disabled".
        self.exposed_seconds = exposed_seconds  # What the call cost the training thread.
        self.captured = Future(session, step, "captured")
        self.replicated = Future(session, step, "replicated")
        self.committed = Future(session, step, "committed")
        self.durable = Future(session, step, "durable")

    def __bool__(self):
        return self.outcome == "started"

    def __repr__(self):
        return f"Ticket(step={self.step}, {self.outcome}, {self.exposed_seconds * 1e3:.1f} ms)"
