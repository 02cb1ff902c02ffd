"""Shared queues: objects of a framework that save to one directory, as those of two parts of a
training in one program, share its publish queue.
"""

from libckpt.core.files import _publish_queue


def opened(job, directory, **options):
    """The job's queue. An object of the framework that is made anew, as by a cell of a notebook or
    for the next part of a training, shares the one that another has open in this process."""
    found = _open_one(job)
    if found is None:
        return _publish_queue.PublishQueue(job, directory, **options)
    found.users += 1
    return found


def settle_earlier(job):
    """Publishes what such an object has on its way, before it is taken for a killed run's."""
    if _open_one(job) is not None:
        _publish_queue.settle(wait=True)


def _open_one(job):
    found = (each for each in _publish_queue._queues if each.session.job == job and each.is_ours())
    return next(found, None)
