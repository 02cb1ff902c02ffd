"""Metrics: numbers that go with a save, by which retention keeps the best checkpoints."""

import logging

from libckpt.errors import CheckpointError

logger = logging.getLogger("libckpt")


def told(step, metrics):
    """What a save was given: the numbers by name, or a function that returns them. Only a save that
    is due calls it: it may have to wait for a GPU."""
    if not callable(metrics):
        return metrics
    try:
        return metrics()
    except Exception as error:  # It is the user's.
        logger.warning("libckpt: save step %d: its metrics are left out, as %s raised %r", step,
                       getattr(metrics, "__name__", "their function"), error)  # fmt: skip
        return None


def give(client, step, metrics):
    """For the save that follows. Bad ones are left out and logged: the save is worth more."""
    left_out = []
    try:
        named = dict(metrics or {})
    except (TypeError, ValueError) as error:
        named = {}
        left_out.append(f"metrics={metrics!r:.100} are not numbers by name ({error})")
    for name, value in named.items():
        try:
            if not isinstance(name, str):
                raise TypeError("a name is text")
            client.set_metric(name, float(value))
        except (ArithmeticError, TypeError, ValueError, RuntimeError, CheckpointError) as error:
            left_out.append(f"{name!r:.100} ({error})")
    if left_out:
        logger.warning("libckpt: save step %d: %d metrics are left out, as %s", step,
                       len(left_out), "; ".join(left_out[:3]))  # fmt: skip
