"""Left: the step that a training leaves behind when it begins without asking for it."""

import logging

from libckpt import errors

logger = logging.getLogger("libckpt")


def warn(session, cure, begin=None):
    """Names the newest step that the job could go on from, and how. On rank 0, before start_fresh:
    the node that coordinates the job knows it. `begin`: training goes on from this step, which
    older ones lead to, perhaps; None: it begins."""
    if session.rank != 0:
        return
    try:
        status = session.status()["daemon"] or {}
        there = [each for each in status.get("steps", ()) if not each["abandoned"]]
    except errors.CheckpointError:  # It is only a warning.
        return
    newest = max(there, key=lambda each: (each["timeline"], each["step"]), default=None)
    if newest is None or begin is not None and newest["step"] <= begin:
        return
    logger.warning(
        "libckpt: job %s begins %s, and leaves step %d behind, which is %s: to go on from such a "
        "step, %s", session.job, "anew" if not begin else f"at step {begin}", newest["step"],
        "on storage" if newest["on_storage"] and not newest["copies"] else "in memory", cure,
    )  # fmt: skip
