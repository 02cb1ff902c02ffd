"""Unopened: a door whose session cannot be opened lets training go on without one. A restore says
that nothing can be read, and does not begin anew over what is stored.

The stand-in is a session as with `disable`: its saves do nothing, and its counts are there.
"""

import logging

from libckpt import errors
from libckpt._init import init
from libckpt._published import list_published
from libckpt.core import _open_sessions, _ranks

logger = logging.getLogger("libckpt")


def opened(job, dir=None, *, may_raise=False, **options):
    """(session, None), or after a failure (its stand-in, an Unopened): on all ranks alike, as a
    session opens on all or on none. A wrong option raises."""
    try:
        return init(job, dir, **options), None
    except errors.InvalidArgument:
        raise
    except errors.CheckpointError as error:
        if may_raise:
            # Not NotFound, as for a program that is not there: callers would begin anew.
            raise errors.Unavailable(f"job {job}: {error}") from error
        logger.error("libckpt: job %s: %s; training goes on, and steps are not captured in memory",
                     job, error)  # fmt: skip
        session = init(job, dir, **{**options, "disable": True})
        return session, Unopened(session, error)


def is_wrong_option(error):
    """Whether a door raises it: a training is not to begin in another way than its user wrote."""
    is_there = isinstance(error, _open_sessions.AlreadyOpen)
    return isinstance(error, errors.InvalidArgument) and not is_there


def unopened(error, job, **options):
    """For a door that works without a stand-in: the Unopened after this error of `init`. None: an
    option is wrong, so that nobody knows where to look."""
    try:
        return Unopened(init(job, **{**options, "disable": True}), error)
    except errors.InvalidArgument:
        return None


class Unopened:
    """Why there is no session, and what a restore raises therefore."""

    def __init__(self, session, error):
        self.job, self.dir, self.error = session.job, session.dir, error
        # Those of the stand-in say nothing to one another.
        self._ranks = _ranks.of(
            {"job": self.job, "rank": session.rank, "world_size": session.world_size}
        )

    def refusal(self, step=None):
        """NotFound where nothing is lost by beginning; else Unavailable. All ranks call it, and
        get the same."""
        there = self._ranks.decide("what is stored", self._stored(), _first)
        if there is None and step is not None:
            there = f"step {step}"
        if there is None:
            return errors.NotFound(
                f"job {self.job}: nothing can be read from memory, and storage has no step: "
                f"{self.error}"
            )
        return errors.Unavailable(
            f"job {self.job}: {self.error}; so {there} cannot be restored, and training must not "
            "begin anew over it: mend that and start again, or give another job and dir"
        )

    def failure(self):
        """The refusal; None: nothing is lost by beginning."""
        refusal = self.refusal()
        return None if isinstance(refusal, errors.NotFound) else refusal

    def _stored(self):
        """Names in words what this rank sees in the directory, which it reads without a daemon."""
        if self.dir is None:
            return None
        try:
            found = list_published(self.dir)
        except errors.NotFound:
            return None
        except errors.CheckpointError as error:  # Whatever is there may be good.
            return f"what lies in {self.dir} ({error})"
        steps = [each.step for each in found.checkpoints
                 if each.job == self.job and not each.is_abandoned]  # fmt: skip
        if steps:
            return f"step {steps[0]} in {self.dir}"
        return f"what lies in {self.dir} ({found.damage[0]})" if found.damage else None


def _first(said):
    return next((each for each in said if each is not None), None)
