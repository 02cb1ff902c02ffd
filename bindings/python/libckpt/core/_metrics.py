"""Metrics: numbers that go with a save, by which retention keeps the best checkpoints."""

import logging

from libckpt import errors

logger = logging.getLogger("libckpt")


def give(client, step, metrics):
    """For the save that follows. A bad one is left out and logged: the save is worth more."""
    for name, value in dict(metrics or {}).items():
        try:
            client.set_metric(name, float(value))
        except (TypeError, ValueError, RuntimeError, errors.CheckpointError) as error:
            logger.warning("libckpt: save step %d: metric %r is left out: %s", step, name, error)
