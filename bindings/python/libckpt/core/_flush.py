"""Flush: which step a session waits for when its newest one is to be on storage."""

import contextlib

from libckpt import errors

# For the commit of several ranks: another one may be behind, and wait for a message of this one.
OTHERS_SECONDS = 10.0


def newest(session, started, deadline):
    """Waits until the step whose save began last is durable. If that one is never committed, waits
    for the newest committed step."""
    if started is not None and (session.latest or -1) < started:
        ignored, seconds = [errors.NotFound, errors.Exhausted], deadline
        if session.world_size > 1:
            ignored.append(errors.Unavailable)
            seconds = min(deadline, OTHERS_SECONDS)
        with contextlib.suppress(*ignored):
            session.wait(started, "committed", seconds)
    if session.latest is not None:
        session.wait(session.latest, "durable", deadline)
