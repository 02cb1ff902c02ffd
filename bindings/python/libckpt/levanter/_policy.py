"""Policy: when Levanter saves, and whether for good.

    permanent   every so many steps, by the first interval whose `until` is not passed; or forced
    temporary   so long after the save before it
"""

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class CheckpointInterval:
    every: int  # Steps.
    until: int | None = None  # The last step that it holds for; None: all.


class Policy:
    def __init__(self, save_interval, step_policies, now):
        self._save_interval, self._step_policies = save_interval, list(step_policies)
        self._now = now or datetime.datetime.now
        self._last_time, self._last_step = self._now(), None
        for before, after in zip(self._step_policies, self._step_policies[1:], strict=False):
            if before.until is None:
                raise ValueError("step_policies: only the last one may have an `until` of None")
            if after.until is not None and before.until >= after.until:
                raise ValueError("step_policies: they must be sorted by `until`")

    def decide(self, step, force):
        """"permanent", "temporary", or None: no save. One process decides for all."""
        if step == 0:
            self._last_time = self._now()
            if not force:
                return None
        if step == self._last_step and not force:
            return None
        every = self._every(step)
        if force or (every is not None and step % every == 0):
            return "permanent"
        is_due = self._save_interval and self._now() - self._last_time >= self._save_interval
        return "temporary" if is_due else None

    def saved(self, step):
        """Returns the time that the metadata of the step has."""
        self._last_step, self._last_time = step, self._now()
        return self._last_time.isoformat()

    def _every(self, step):
        held = (p for p in self._step_policies if p.until is None or p.until >= step)
        policy = next(held, None)
        return None if policy is None else policy.every
