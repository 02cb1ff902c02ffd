"""Queues: the publish queues of the directories that are saved to, of which few are open."""

import logging

from libckpt import errors
from libckpt.core import _settings
from libckpt.core.files import _owner, _publish_queue

logger = logging.getLogger("libckpt")

OPEN_MAX = 2  # A loop may write to a new directory each time.

by_directory = {}  # By where their steps are; the last is the one that was used last.
_of_others = {}  # By the same, of another process: who that is.


def open_for(path, directory, on_new=lambda: None, keeps_none=False):
    """The queue that keeps its steps in the directory; None when libckpt is disabled, or when none
    can be opened, which the log says: as while another process has it. `path` is what it is for;
    `on_new` is called before a queue is opened; one that `keeps_none` of its steps removes them
    when it is closed."""
    if _settings.is_true(_settings.configured("disable")):
        return None
    key = str(directory)
    if key in by_directory and by_directory[key].is_ours():
        by_directory[key] = by_directory.pop(key)
        return by_directory[key]
    _close_all_but(OPEN_MAX - 1)
    job = _publish_queue.job_of("torch", path.name, directory)
    try:
        if not _is_ours(path, key):
            return None
        on_new()
        # A process saves to a path alone, also where torchrun has started others.
        by_directory[key] = _publish_queue.PublishQueue(job, directory, rank=0, world_size=1)
    except errors.CheckpointError as error:
        _owner.give_back(key)
        logger.error("libckpt: %s: %s; stock torch saves instead", path, error)
        return None
    by_directory[key].keeps_none = keeps_none
    return by_directory[key]


def _is_ours(path, key):
    other = _owner.take(key)
    if other is None:
        _of_others.pop(key, None)
    elif _of_others.get(key) != other:
        _of_others[key] = other
        logger.warning(
            "libckpt: %s: %s saves there, too: as long as it lives, stock torch writes what this "
            "process saves there. Save from one process, or give each its own folder", path, other,
        )  # fmt: skip
    return other is None


def _close(key):
    by_directory.pop(key).close()
    _owner.give_back(key)


def _close_all_but(count):
    """Leaves at most so many open, those that were used last: each has memory of the daemon's."""
    for key in [key for key, queue in by_directory.items() if not queue.is_ours()]:
        del by_directory[key]
    while len(by_directory) > count:
        idle = [key for key, queue in by_directory.items() if not queue.waiting]
        if idle:
            _close(idle[0])
        else:
            _publish_queue.settle(wait=True)


def capture(queue, items):
    """Captures the items; if memory is short, in that of the other queues."""
    try:
        return queue.capture(items)
    except errors.Exhausted:
        _publish_queue.settle(wait=True)
        others = [key for key, other in by_directory.items() if other is not queue]
        if not others:
            raise
        for key in others:
            _close(key)
    return queue.capture(items)
