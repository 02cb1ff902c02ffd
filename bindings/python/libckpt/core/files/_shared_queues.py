"""Shared queues: objects of a framework that save to one directory, as those of two parts of a
training in one program, share its publish queue.
"""

import os

from libckpt.core.files import _publish_queue


def opened(job, directory, **options):
    """The job's queue. An object of the framework that is made anew, as by a cell of a notebook or
    for the next part of a training, shares the one that another has open in this process. One that
    is open for another directory is not shared: its steps are there, and `init` refuses the job."""
    found = _open_one(job, directory)
    if found is None:
        return _publish_queue.PublishQueue(job, directory, **options)
    found.users += 1
    return found


def settle_earlier(job, directory):
    """Publishes what such an object has on its way, before it is taken for a killed run's. Returns
    whether nothing waits then: else the notes that are there are of this run."""
    found = _open_one(job, directory)
    if found is None:
        return True
    _publish_queue.settle(wait=True)
    return not found.waiting


def _open_one(job, directory):
    place = os.path.realpath(directory)
    for each in _publish_queue._queues:
        is_same = each.session.job == job and os.path.realpath(each.directory) == place
        if is_same and each.is_ours():
            return each
    return None
