"""torch.distributed.checkpoint against memory and storage: `libckpt.dcp.Storage` in the places of
its `storage_writer`, `async_stager` and `storage_reader`.

    storage = libckpt.dcp.Storage("ckpt://my-run", dir="checkpoints")
    dcp.async_save(state_dict, checkpoint_id="ckpt://my-run/step-100", storage_writer=storage)
    dcp.load(state_dict, checkpoint_id="ckpt://my-run/latest", storage_reader=storage)

With "?source=memory" or "?source=storage" behind an id, a load takes the step from there alone. A
path as checkpoint_id is a folder in DCP's own format, which appears whole or not at all.
"""

import logging
import threading

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter
from torch.futures import Future

from libckpt import errors
from libckpt.core import _settings
from libckpt.dcp import _capturing, _fetching, _folders, _ids, _jobs, _staging
from libckpt._init import check, with_keywords

__all__ = ["Storage"]

logger = logging.getLogger("libckpt")


class Storage(StorageWriter, StorageReader, AsyncStager):
    """One for all saves and loads. Each save runs in one thread, several may run at a time.

    checkpoint_id: the default where a call of DCP gives none; "ckpt://JOB" alone opens the job.
    options: those of libckpt.init, for the jobs. raise_on_error: a save into memory that fails
    raises; else it is logged, and DCP goes on as if it had been made. So it is where no daemon can
    be had: one line says that nothing is captured, and folders are written as ever.
    """

    _synchronize_after_execute = False  # stage() returns when the copy is made.

    @with_keywords
    def __init__(self, checkpoint_id=None, *, dir=None, **options):
        given = {"dir": dir, **options}
        options = {name: value for name, value in given.items() if value is not None}
        check(**options)
        self._may_raise = _settings.flag("raise_on_error", options.pop("raise_on_error", False))
        self._options = options
        self._default = None if checkpoint_id is None else _ids.parse(checkpoint_id)
        self._staging = _staging.Staging()
        self._call = threading.local()  # For the call of DCP in this thread.
        if isinstance(self._default, _ids.Id):
            self._job(self._default)

    def find(self, checkpoint_id=None):
        """The step that a load of this id would bring, None: there is none. All ranks call it."""
        wanted = self._id_of_job(checkpoint_id, "find")
        if self._is_disabled():
            return None
        try:
            found = _fetching.find(self._job(wanted), wanted)
        except errors.NotFound as error:
            if wanted.step is not None and self.session(checkpoint_id).rank == 0:
                logger.warning("libckpt: dcp: find %s: %s", wanted, error)
            return None
        self._call.found = (wanted, found)  # A load that follows need not look again.
        return found.step

    def session(self, checkpoint_id=None):
        """The session of the job, for its counts and its status."""
        return self._job(self._id_of_job(checkpoint_id, "session")).session

    # --- of StorageWriter and StorageReader

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self._call.id = _ids.parse(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True

    @property
    def checkpoint_id(self):
        given = self._wanted()
        return str(given) if isinstance(given, _ids.Id) else given

    # --- saving

    def stage(self, state_dict):
        return self._staging.stage(state_dict)

    def synchronize_staging(self):
        """Nothing is left to wait for."""

    def close(self):
        """Gives the memory for copies back. Jobs stay open, for a restart wants their memory."""
        self._staging.close()

    def set_up_storage_writer(self, is_coordinator, *arguments, **kwargs):
        wanted = self._wanted()
        self._call.is_coordinator = is_coordinator
        self._call.save = self._folder(wanted) if isinstance(wanted, str) else self._capture(wanted)
        self._call.save.set_up(is_coordinator, **kwargs)

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        """On the coordinator, of a save or of a load."""
        is_load = any(isinstance(plan, LoadPlan) for plan in plans)
        return (self._call.load if is_load else self._call.save).prepare_global_plan(plans)

    def write_data(self, plan, planner):
        return _done(self._call.save.write(plan, planner))

    def finish(self, metadata, results):
        self._call.save.finish(metadata, results)

    # --- loading

    def read_metadata(self, *arguments, **kwargs):
        wanted = self._wanted()
        if isinstance(wanted, str):
            self._call.load = FileSystemReader(wanted)
            return self._call.load.read_metadata(**kwargs)
        if "rank" in kwargs:  # DCP tries this when the first call of it failed.
            raise errors.NotFound(f"dcp: {self.checkpoint_id} has no metadata for each rank")
        known, found = getattr(self._call, "found", (None, None))
        self._call.found = (None, None)
        if known != wanted or not found.is_of_now():
            found = _fetching.find(self._job(wanted), wanted)
        self._call.load = _fetching.Fetch(found)
        return self._call.load.metadata()

    def set_up_storage_reader(self, metadata, is_coordinator, *arguments, **kwargs):
        self._call.load.set_up_storage_reader(metadata, is_coordinator, **kwargs)

    def read_data(self, plan, planner):
        return self._call.load.read_data(plan, planner)

    # ---

    def _wanted(self):
        """An Id, or a path."""
        wanted = getattr(self._call, "id", self._default)
        if wanted is None:
            raise errors.InvalidArgument(
                'dcp: no checkpoint_id was given: give DCP\'s call one, as "ckpt://JOB/step-100" '
                "or a path"
            )
        return wanted

    def _id_of_job(self, checkpoint_id, call):
        """An Id. Raises InvalidArgument for a path, which no job has."""
        wanted = self._default if checkpoint_id is None else _ids.parse(checkpoint_id)
        if isinstance(wanted, _ids.Id):
            return wanted
        given = "no checkpoint_id" if wanted is None else f'"{wanted}"'
        raise errors.InvalidArgument(
            f'dcp: {call}: {given} was given, which is no job: give '
            f'"{_ids.SCHEME}JOB/{_ids.LATEST}"; a folder is complete when it has a file .metadata'
        )

    def _job(self, wanted):
        job = _jobs.of(wanted.job, self._options)
        if self._may_raise:
            job.check_may_save()
        return job

    def _folder(self, path):
        return (_folders.Stock if self._is_disabled() else _folders.Folder)(path)

    def _is_disabled(self):
        return _settings.is_disabled(self._options)

    def _capture(self, wanted):
        if wanted.step is None:
            raise errors.InvalidArgument(
                f"dcp: save {self.checkpoint_id}: say which step it is, as "
                f'"{_ids.SCHEME}{wanted.job}/step-100"'
            )
        if wanted.source is not None:
            raise errors.InvalidArgument(
                f"dcp: save {self.checkpoint_id}: a source is for loads: save to the id without it"
            )
        return _capturing.Capture(self._job(wanted), wanted.step, self._may_raise)

    def __reduce__(self):
        raise errors.InvalidArgument(
            "dcp: a libckpt.dcp.Storage cannot go to another process: call dcp.async_save with "
            "AsyncCheckpointerType.THREAD, which is the default"
        )


def _done(value):
    future = Future()
    future.set_result(value)
    return future
