"""Leftovers: what a killed run had captured for files. The next process brings it to its place,
says that it does not come, or keeps it for later where the disk refuses it.
"""

import contextlib
import logging
import os
import time

from libckpt import errors
from libckpt.core.files import _storage

logger = logging.getLogger("libckpt")

# For the daemon to bring it to storage: as long as supervisors let a process that they end, which
# the daemon of that run may be.
FINISH_DEADLINE = 30.0
SILENT_MAX = 3.0  # A longer wait is logged.
LOOK_EVERY = 0.02  # Seconds.

_unfinished = {}  # By directory: why what was captured is not in its place.


def ends():
    """The time by which one process's leftovers are to be on storage."""
    return time.monotonic() + FINISH_DEADLINE


def await_step(directory, step, ends, weights=None):
    """As find_step, by that time: the daemon brings to storage what a killed run had captured."""
    began, is_silent = time.monotonic(), True
    while True:
        # A newer one on storage has overtaken it, unless it is there by then.
        is_overtaken = any(number > step for number, _ in _storage.steps(directory))
        path, files = _storage.find_step(directory, step, weights)
        now = time.monotonic()
        if path is not None or is_overtaken or now > ends:
            return path, files
        if is_silent and now - began > SILENT_MAX:
            is_silent = False
            logger.warning(
                "libckpt: a killed run had captured files for %s: the daemon is waited for to "
                "bring them to storage, up to %.0f s more", _place(directory), ends - now,
            )  # fmt: skip
        time.sleep(LOOK_EVERY)


def log_dropped(target, is_whole=True):
    """Says what does not come."""
    why = "the daemon has not brought it to storage by now, or a newer one was there first"
    logger.warning("libckpt: %s does not come: a killed run had captured it, but %s", target,
                   why if is_whole else "not on all ranks")  # fmt: skip


def attempt(directory, finish):
    """Whether `finish()` has brought all of it to its place. Else it stays, and a later call may;
    `refuse_to_begin` says so to whoever finds nothing else to resume from."""
    try:
        finish()
    except OSError as error:
        logger.error("libckpt: what a killed run had captured for %s is not in its place: %s; it "
                     "stays, and is tried again", directory, error)  # fmt: skip
        note(directory, str(error))
        return False
    note(directory, None)
    return True


def note(directory, reason):
    """None: nothing is left there."""
    if reason is None:
        _unfinished.pop(str(directory), None)
    else:
        _unfinished[str(directory)] = reason


def reason(directory):
    return _unfinished.get(str(directory))


def refuse_to_begin():
    """Raises when a training that found nothing would begin anew over what was captured."""
    for directory, why in _unfinished.items():
        raise errors.StorageError(
            f"nothing to resume from, but a killed run had captured files for {directory}, which "
            f"cannot be put there: {why}. Mend that and start again; to begin at step 0 instead, "
            f"remove {os.path.join(directory, '.libckpt')}"
        )


def _place(directory):
    """The user's directory that the private one is in."""
    with contextlib.suppress(ValueError):
        parts = directory.parts
        return os.path.join(*parts[: parts.index(".libckpt")])
    return directory
