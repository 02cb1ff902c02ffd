"""Metrics: numbers that go with a save, by which retention keeps the best checkpoints."""

import logging

from libckpt.core import _signals
from libckpt.errors import CheckpointError

logger = logging.getLogger("libckpt")


def named(step, metrics):
    """The numbers by name: as given with a save, or by a function that was given instead. Only a
    save that is due calls it: it may have to wait for a GPU."""
    if not callable(metrics):
        return metrics
    try:
        return metrics()
    except Exception as error:  # It is the user's.
        _signals.raise_of_handler(error)
        logger.warning("libckpt: save step %d: its metrics are left out, as %s raised %r", step,
                       getattr(metrics, "__name__", "their function"), error)  # fmt: skip
        return None


def give(client, step, metrics):
    """For the save that follows. Bad ones are left out and logged: the save is worth more."""
    left_out = []
    try:
        numbers = dict(metrics or {})
    except (TypeError, ValueError) as error:
        numbers = {}
        left_out.append(f"metrics={metrics!r:.100} are not numbers by name ({error})")
    for name, value in numbers.items():
        try:
            if not isinstance(name, str):
                raise TypeError("a name is text")
            client.set_metric(name, float(value))
        except (ArithmeticError, TypeError, ValueError, RuntimeError, CheckpointError) as error:
            left_out.append(f"{name!r:.100} ({error})")
    if left_out:
        logger.warning("libckpt: save step %d: %d metrics are left out, as %s", step,
                       len(left_out), "; ".join(left_out[:3]))  # fmt: skip
