"""EasyCkpt: the memory and the folders of a job, for the three functions of the package."""

import logging
import operator
import os
import pathlib

from libckpt import errors
from libckpt._init import check
from libckpt.core import _resuming, _settings, _turn
from libckpt.core.files import _leftovers, _publish_queue
from libckpt.megatron import _classic, _folders, _torch_dist, _training
from libckpt.megatron._memory import Memory

logger = logging.getLogger("libckpt")

FORMATS = ("torch", "torch_dist")  # Formats of folders, by Megatron's names.


class EasyCkpt:
    def __init__(self, save_mem_interval, save_storage_interval, max_ckpt_num, log_file_path=None,
                 *, job=None, save_dir=None, load_dir=None, dir=None, ckpt_format="torch",
                 **options):  # fmt: skip
        if ckpt_format not in FORMATS:
            raise errors.InvalidArgument(
                f'initialize_easyckpt: ckpt_format is "{ckpt_format}": give one of '
                + ", ".join(FORMATS)
            )
        self._format = ckpt_format
        self._storage_interval = _count("save_storage_interval", save_storage_interval)
        self._max_ckpt_num = _count("max_ckpt_num", max_ckpt_num)
        self._options = {"save_mem_interval": save_mem_interval or "never", **options}
        if dir is not None:
            interval = self._storage_interval or "never"
            self._options |= {"dir": dir, "save_storage_interval": interval,
                              "max_ckpt_num": self._max_ckpt_num}  # fmt: skip
        if log_file_path is not None:
            self._options["log_file_path"] = os.fspath(log_file_path)
        check(job, **self._options)
        self._job, self._save_dir, self._load_dir = job, save_dir, load_dir
        self._memory, self._folders = None, None
        self._has_asked = False  # Memory for its newest step.
        self._begins_elsewhere = False  # The program has loaded, and something else.
        self._captured = None

    @property
    def is_disabled(self):
        return _settings.is_disabled(self._options)

    @property
    def memory(self):
        """Opened when it is first needed: the process groups exist by then."""
        if self._memory is None:
            job = _settings.job(self._job)
            if job is None:
                directory = os.path.realpath(self.save_dir or ".")
                job = _publish_queue.job_of("megatron", os.path.basename(directory), directory)
            self._memory = Memory(job, self._options)
        return self._memory

    @property
    def save_dir(self):
        return self._save_dir or getattr(_training.args(), "save", None)

    @property
    def load_dir(self):
        return self._load_dir or getattr(_training.args(), "load", None) or self.save_dir

    @property
    def folders(self):
        """None: there is no directory to save to."""
        if self._folders is None and self.save_dir:
            self._folders = _folders.Folders(self.save_dir, self._max_ckpt_num, self.is_disabled,
                                             self._format)  # fmt: skip
        return self._folders

    # --- saving

    def save(self, iteration, model, optimizer, scheduler, flops=0, metrics=None):
        """In memory and on storage, as far as each is due."""
        self.capture(iteration, model, optimizer, scheduler, flops, metrics)
        if self._storage_interval and iteration % self._storage_interval == 0:
            self.store(iteration, model, optimizer, scheduler, flops)

    def capture(self, iteration, model, optimizer, scheduler, flops=0, metrics=None):
        """In memory, if that is due; once for each iteration."""
        if self.is_disabled or iteration == self._captured:
            return
        if self._begins_elsewhere and not self._has_asked and self.memory.is_open:
            self._start_fresh()
        self._captured = iteration
        progress = {"num_floating_point_operations_so_far": flops, **_training.progress()}
        self.memory.save(iteration, (_chunks(model), optimizer, scheduler), progress, metrics)

    def store(self, iteration, model, optimizer, scheduler, flops=0):
        """On storage, now."""
        if self.folders is not None:
            self.folders.save(iteration, _chunks(model), optimizer, scheduler, flops)

    def _start_fresh(self):
        self._has_asked = True
        if self.memory.session is None:
            return
        try:
            self.memory.session.start_fresh()
        except errors.CheckpointError as error:
            logger.error("libckpt: %s; Megatron's steps are not captured in memory", error)

    def close(self):
        """Returns when what was saved is on storage; frees the memory."""
        if self._folders is not None:
            self._folders.close()
        if self._memory is not None and self._memory.session is not None:
            self._memory.session.close()
        self._memory, self._folders = None, None

    def let_go(self):
        """Returns when the folders are on storage; the memory stays for another one."""
        if self._folders is not None:
            self._folders.close()
        self.abandon()

    def abandon(self):
        """Lets go of the memory, which stays as it is."""
        if self._memory is not None and self._memory.session is not None:
            self._memory.session.abandon()
        self._memory, self._folders = None, None

    # --- loading

    def load(self, model, optimizer, scheduler, load_arg="load", strict=True, source=None, **more):
        """(iteration, operations so far)."""
        _turn.check_source(source)
        model = _chunks(model)
        if self.folders is not None:
            self.folders.settle()  # An earlier run's leftovers are published by now.
        is_ours = load_arg == "load" and not getattr(_training.args(), "finetune", False)
        if source == "memory" and not is_ours:
            raise errors.InvalidArgument(
                f'load_checkpoint: source="memory": load_arg "{load_arg}" and finetune load folders'
            )
        self._begins_elsewhere = not is_ours
        newest = self._newest_folder() if is_ours and self.load_dir else None
        found, failure = None, None
        if is_ours and not self.is_disabled:
            self._has_asked |= self.memory.is_open
            oldest, session = None if source == "memory" else newest, self.memory.session
            found, failure, stored = _resuming.from_source(
                source, session if self.memory.is_open else None,
                lambda source: self.memory.restore(model, optimizer, scheduler, oldest, source),
                None if newest is None else self._path(newest), self.memory.unopened,
            )  # fmt: skip
            beside, newest = newest, None if stored is None else newest
            if found is not None and (newest is None or found[1].step >= newest):
                return self._resumed(*found, beside)
            if found is not None:
                logger.warning("libckpt: resumes from %s, which is newer than step %d in memory%s",
                               self._path(newest), found[1].step,
                               _resuming.lost(found[1], newest))  # fmt: skip
                self._start_fresh()
        if is_ours and newest is None:
            if failure is not None:
                raise failure  # There is something: do not begin anew over it.
            _leftovers.refuse_to_begin()
            if _training.stock("load_checkpoint") is None:
                _folders.refuse_other(self.load_dir or ".")
                logger.warning("libckpt: nothing to resume from: training begins at iteration 0")
                return 0, 0
        if failure is not None:
            logger.error("libckpt: resume from memory: %s; resumes from %s instead",
                         failure, self._path(newest))  # fmt: skip
            self._start_fresh()
        elif newest is not None and found is None:
            why = "it is disabled" if self.is_disabled else "memory has no step"
            if source == "storage" and not self.is_disabled:
                why = "memory was not asked"
                self._start_fresh()  # It may have steps, which do not lead to this one.
            logger.warning("libckpt: resumes from %s; %s", self._path(newest), why)
        return self._from_folder(newest, model, optimizer, scheduler, load_arg, strict, more)

    def _newest_folder(self):
        if self.folders is None:
            return _folders.newest_in(self.load_dir)
        return self.folders.newest_in(self.load_dir)

    def _resumed(self, progress, restored, newest):
        _resuming.log_memory(restored, newest)
        _training.give_progress(progress)
        return progress["iteration"], progress["num_floating_point_operations_so_far"]

    def _path(self, newest):
        return os.path.join(self.load_dir, _classic.folder_of(newest))

    def _from_folder(self, newest, model, optimizer, scheduler, load_arg, strict, more):
        stock = _training.stock("load_checkpoint")
        if stock is not None:
            more = _training.known(stock, more)
            found = stock(model, optimizer, scheduler, load_arg, strict, **more)
            return found if isinstance(found, tuple) else (found, 0)
        if newest is None:
            raise errors.InvalidArgument(
                f'load_checkpoint: load_arg "{load_arg}" is an option of megatron.training, which '
                "is not there"
            )
        folder = pathlib.Path(self._path(newest))
        give = _torch_dist.give if _torch_dist.is_one(folder) else _classic.give
        return give(folder, model, optimizer, scheduler, strict)


def _count(name, given):
    """The number of iterations or folders; 0: none, or all."""
    count = _settings.count(name, given or 0)
    if not hasattr(count, "__index__") or operator.index(count) < 0:
        raise errors.InvalidArgument(f"option {name}: {given!r} was given: give a number from 0")
    return count


def _chunks(model):
    return list(model) if isinstance(model, (list, tuple)) else [model]
