"""Jobs: one session for each job of this process, whichever Storage asks for it."""

import threading

from libckpt import errors
from libckpt.core import _left, _unopened

_lock = threading.Lock()
_jobs = {}  # By name.


class Job:
    def __init__(self, name, options):
        self.name, self.options = name, options
        self.session, self._unopened = _unopened.opened(name, raise_on_error=True, **options)
        self.session._restorer.warns_of_left = False  # A load may want any part of a checkpoint.
        self.saves = 0  # How many were begun.
        self.has_asked = False  # Whether anything was looked for in it.
        self._has_begun = False

    def check_open(self, step=None):
        """Raises when the session could not be opened. All ranks call it."""
        if self._unopened is not None:
            raise self._unopened.refusal(step)

    def check_may_save(self):
        """Raises where a failure is to raise, and the session could not be opened."""
        if self._unopened is not None:
            raise errors.Unavailable(f"job {self.name}: {self._unopened.error}")

    def begin(self):
        """Before each save, on all ranks. A job that was not asked what it has begins anew."""
        if not self.has_asked and not self._has_begun:
            _left.warn(self.session, f"call find() or load ckpt://{self.session.job}/latest before "
                       "the first save")  # fmt: skip
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
