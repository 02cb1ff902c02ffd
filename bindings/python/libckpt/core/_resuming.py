"""Resuming: memory or a framework's own storage, whichever is newer, and a line that says which."""

import logging
import os

from libckpt import errors
from libckpt.core import _signals, _turn
from libckpt.core.files import _leftovers

logger = logging.getLogger("libckpt")

NEWEST = "ckpt://newest"  # Where a framework wants a path: the newest of memory and its own files.
SOURCE = "?source="  # Behind it: "memory", or "storage", to take it from there alone.


def source_in(path):
    """(whether the path is NEWEST, the source that it names or None), checked."""
    wanted, has_source, source = os.fspath(path).partition(SOURCE)
    if wanted != NEWEST:
        return False, None
    source = source if has_source else None
    _turn.check_source(source)
    return True, source


def from_memory(session, restore, unopened=None):
    """(what `restore` brings or None, why it could not be had). All ranks have it, or none.

    unopened: why there is no session. The steps in its directory cannot be had then.
    """
    restored = failure = None
    if session is None:
        return None, None if unopened is None else unopened.failure()
    try:
        restored = restore()
    except errors.NotFound:
        pass
    except Exception as error:  # After any failure, storage may be good.
        failure = error
    try:
        session.agree("resume", failure)
    except Exception as error:  # Our own, or another rank's.
        failure = failure or error
        _signals.raise_of_handler(failure)
    return (None if failure else restored), failure


def source_again(source, restored, session):
    """The source for a load's second restore of the step. If as many ranks as saved it had it from
    storage, it lies in their own memory by then, and is not read twice."""
    is_here = source == "storage" and restored.world_size == session.world_size
    return None if is_here else source


def from_source(source, session, restore, stored, unopened=None):
    """As from_memory, and what there is besides: `stored`, a path or None, which is of storage. So
    it is None where memory alone is wanted. `restore` is given the source."""
    if source == "storage" and session is not None and not session.dir:
        if stored is not None:
            return None, None, stored
        _, failure = from_memory(session, lambda: _refuse_memory(session), unopened)
        return None, failure, None
    restored, failure = from_memory(session, lambda: restore(source), unopened)
    if source != "memory":
        return restored, failure, stored
    if restored is None and failure is None and stored is not None:
        why = f"restore from memory alone: it has no step; {stored} is there"
        failure = errors.Unavailable(why)
    return restored, failure, None


def _refuse_memory(session):
    found = session.restore(shapes_only=True)  # Raises NotFound, where training may begin.
    raise errors.Unavailable(
        f"restore from storage alone: there is nothing; step {found.step} can be restored from "
        f"{found.source_name}"
    )


def was_refused(session, ticket):
    """Whether the library itself refused the save, as that of a job whose steps nobody restored."""
    return ticket.outcome == "failed" and session._tensors.asked == ticket.step


def log_memory(restored, newest, noun="folder"):
    """Training goes on from memory; `newest`: what there is besides, or None."""
    other = f"there is no {noun}" if newest is None else f"the newest {noun} is {newest}"
    logger.warning("libckpt: resumes step %d from %s; %s%s", restored.step, restored.source_name,
                   other, lost(restored))  # fmt: skip


def log_restored(restored):
    """The same, where nobody looked for anything besides."""
    logger.warning("libckpt: resumes step %d from %s%s", restored.step, restored.source_name,
                   lost(restored))  # fmt: skip


def lost(restored, step=None):
    """How many steps a resume costs, for the end of its line; empty: not known.

    step: training goes on from this one, which a folder has, and not from the restored one.
    """
    step, newest = restored.step if step is None else step, restored.newest_seen
    if newest is None or newest < step:  # The folder is of what no daemon saw.
        return ""
    if newest == step:
        return "; no step was lost"
    count = newest - step
    steps = "1 step after it was" if count == 1 else f"{count} steps after it were"
    return f"; {steps} lost (newest seen: {newest})"


def is_memory_newest(restored, failure, stored, step, noun="folder", name=None):
    """Whether training goes on from what was restored; else it does from `stored`, a path of that
    step. None: there is none, and training begins.

    `name`: for the line. Raises when nothing can be had, although there is something.
    """
    if restored is not None and (stored is None or restored.step >= step):
        log_memory(restored, stored if name is None else name, noun)
        return True
    if stored is None:
        if failure is not None:
            raise failure  # There is something: do not begin anew over it.
        _leftovers.refuse_to_begin()
        logger.warning("libckpt: nothing to resume from: training begins at step 0")
    elif failure is not None:
        logger.error("libckpt: resume from memory: %s; resumes from %s instead", failure, stored)
    elif restored is not None:
        logger.warning("libckpt: resumes from %s, which is newer than step %d in memory%s", stored,
                       restored.step, lost(restored, step))  # fmt: skip
    else:
        logger.warning("libckpt: resumes from %s; memory has nothing", stored)
    return False
