"""Ending: whether a fit that has ended may be gone on with, and so what becomes of its memory."""

import logging

from libckpt import errors

logger = logging.getLogger("libckpt")


def end(session, trainer, has_captured, has_file):
    """Frees the memory if nobody comes back for it: the fit has made all that it was to make, and
    its last step is in a file, or all is in the session's directory. Else the memory stays, as when
    `max_time` or `should_stop` ends a fit. All ranks call it alike."""
    try:
        session.flush()  # Only with a directory.
        if session.dir or not has_captured or has_file and _is_done(trainer):
            session.close()
    except errors.CheckpointError as error:
        logger.error("libckpt: %s", error)
    session.abandon()  # If it is open.


def _is_done(trainer):
    """By the number of steps or epochs that the Trainer was given."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    is_last_step = steps is not None and 0 < steps <= trainer.global_step
    return is_last_step or epochs is not None and 0 < epochs <= trainer.current_epoch
