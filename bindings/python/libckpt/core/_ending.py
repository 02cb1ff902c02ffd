"""Ending: the last step of a training, which no later one replaces, and the memory behind it."""

import logging

from libckpt import errors
from libckpt.core import _restorer, _signals

logger = logging.getLogger("libckpt")

SLOT_WAIT = 2.0  # For a step that no later one replaces, or that has a file.
CAPTURE_DEADLINE = 5.0  # For a capture that runs beside training.
# A save that failed would fail again, and is logged.
AGAIN = {"captured", "lost", "not_due", "skipped_no_slot", "skipped_unavailable",
         "skipped_by_agreement"}  # fmt: skip


def capture_newest(session, ticket, items, **more):
    """Captures the newest step if a rank lacks it: it was not due, or found no free Slot. `ticket`:
    of that step's save here; None: there was none. Returns that of its newest save. All ranks call
    it. A failure is logged."""
    try:
        outcomes = set(session.ranks.exchange("last step", _outcome(ticket)))
        if outcomes == {"captured"} or not outcomes <= AGAIN:
            return ticket
        if outcomes != {"not_due"}:
            _go_back(session, ticket.step)
        ticket = session.save(ticket.step, items, SLOT_WAIT, **more)
        if ticket:
            ticket.captured.result(CAPTURE_DEADLINE)
    except Exception as error:  # A state_dict() of the user's may raise anything.
        _signals.raise_of_handler(error)
        logger.error("libckpt: the last step is not captured in memory: %s", error)
    return ticket


def _outcome(ticket):
    if not ticket:
        return "none" if ticket is None else ticket.outcome
    try:
        ticket.captured.result(CAPTURE_DEADLINE)
    except errors.CheckpointError:  # As where something wrote into the tensors meanwhile.
        return "lost"
    return "captured"


def _go_back(session, step):
    """All ranks know of a step that one of them skipped, and its number does not come again: but
    behind a restore of the step before. The tensors stay as they are."""
    session.finish_capture()
    if session.rank == 0:  # The library's own line, of a restore, is not to be taken for a loss.
        logger.warning("libckpt: step %d found no free Slot, and no later one replaces it: it is "
                       "captured now, behind the newest step that was", step)  # fmt: skip
    try:
        with session._turn:
            restored, _ = session._restorer.restore(_restorer.Wish({}, shapes_only=True))
        session._must_confirm = restored.step
    except errors.NotFound:
        session.start_fresh()


def is_in_directory(session, step):
    """Whether the session's directory has the step once it is flushed. All ranks call it."""
    session.flush()  # Does nothing without a directory.
    durable = session.counts()["durable"]
    return durable is not None and durable >= step


def end(session, step, is_in_folder):
    """Closes the session, which frees the memory, if its newest step is in a folder or, by now, in
    its directory, on all ranks. Else the memory stays, as after a death. `step` None: none was made
    since the session began. All ranks call it. Raises where the directory takes no step."""
    try:
        is_durable = step is not None and is_in_directory(session, step)
        is_stored = step is None or is_in_folder or is_durable
        if session.ranks.decide("last step is stored", is_stored, all):
            session.close()
        elif session.rank == 0:
            logger.info("libckpt: step %s is in memory alone, which stays for the next start of "
                        "job %s; `ckpt drop` frees it", step, session.job)  # fmt: skip
    finally:
        session.abandon()  # If it is open.
