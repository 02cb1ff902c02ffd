"""Jobs: one session for each job of this process, whichever Storage asks for it."""

import logging
import threading

from libckpt import errors
from libckpt._init import init

logger = logging.getLogger("libckpt")

_lock = threading.Lock()
_jobs = {}  # By name.


class Job:
    def __init__(self, name, options):
        self.name, self.options = name, options
        self.session = init(name, raise_on_error=True, **options)
        self.session._restorer.warns_of_left = False  # A load may want any part of a checkpoint.
        self.saves = 0  # How many were begun.
        self.has_asked = False  # Whether anything was looked for in it.
        self._has_begun = False

    def begin(self):
        """Before each save, on all ranks. A job that was not asked what it has begins anew."""
        if not self.has_asked and not self._has_begun:
            self.session.start_fresh()
        self._has_begun = True
        self.saves += 1


def of(name, options):
    with _lock:
        job = _jobs.get(name)
        if job is not None and not job.session.is_closed:
            if options and options != job.options:
                raise errors.InvalidArgument(
                    f"dcp: job {name} was opened with {job.options} in this process, and now "
                    f"{options} are given: give every Storage of a job the same options"
                )
            return job
        job = _jobs[name] = Job(name, options)
        return job
