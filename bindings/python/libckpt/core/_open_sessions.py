"""Open sessions: those of this process, at most one for each rank of a job."""

import atexit
import contextlib
import weakref

from libckpt import errors

sessions = weakref.WeakSet()


class AlreadyOpen(errors.InvalidArgument):
    """Not an option is wrong: the job has a session here, as of a framework's object before."""


def check_free(job, rank):
    for session in list(sessions):
        if (session.job, session.rank) == (job, rank) and not session.is_closed:
            raise AlreadyOpen(
                f"job {job}: this process has a session of it already: close that one first"
            )


@atexit.register
def _leave():
    # As a death would: the daemon keeps, and goes on to flush, what it holds.
    for session in list(sessions):
        with contextlib.suppress(Exception):
            session.abandon()
