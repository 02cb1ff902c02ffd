"""libckpt for accelerate: a line to attach, one to resume, one for each step.

    state = libckpt.accelerate.attach(accelerator)      # after prepare
    step = state.resume()                               # or accelerator.load_state()
    for batch in accelerator.skip_first_batches(loader, progress.batches):
        ...
        state.capture(step)                             # when all of the step is done

Captured steps outlive the process. `save_state` no longer waits for storage: its folder, in
accelerate's own format, appears whole or not at all.
"""

import functools
import logging
import math
import os

import accelerate
from accelerate.utils import DistributedType

from libckpt import errors
from libckpt._init import check, with_keywords
from libckpt.accelerate._folders import Folders
from libckpt.accelerate._memory import Memory
from libckpt.accelerate._names import Names
from libckpt.core import _resuming, _settings, _turn
from libckpt.core.files import _publish_queue

__all__ = ["State", "attach"]

logger = logging.getLogger("libckpt")

SEATS = ("_models", "_optimizers", "_schedulers", "_dataloaders", "_custom_objects",
         "register_save_state_pre_hook", "project_configuration")  # fmt: skip
METHODS = ("save_state", "load_state", "skip_first_batches", "end_training")


@with_keywords
def attach(accelerator, *, job=None, dir=None, overlap=True, **options):
    """Attaches libckpt to the Accelerator, once its objects are prepared. Returns a State. The job
    is opened by the first resume, `load_state()` without a folder, or capture: one that only loads
    a folder and evaluates takes nothing from a training that runs.

    job: the name of the run; by default LIBCKPT_JOB, or made from the Accelerator's project_dir.
    overlap: parameters and optimizer state are copied while the next step runs, until it updates
    them; False: before `capture` returns. `options` are those of `libckpt.init`.
    """
    is_disabled = _settings.is_disabled(options)
    problem = "" if is_disabled else _problem_of(accelerator)
    if problem:
        logger.warning("libckpt: the Accelerator is left as it is: %s", problem)
    if is_disabled or problem:
        return State(accelerator)
    attached = vars(accelerator).get("_libckpt")
    if attached is not None and attached._is_attached():
        logger.warning("libckpt: attach: the Accelerator is attached already: that stays")
        return attached
    if attached is not None:  # Its training is over.
        attached._detach()
    job = _settings.job(job)
    if job is None and accelerator.project_dir is None:
        raise errors.InvalidArgument(
            "libckpt.accelerate.attach: the Accelerator has no project_dir to name the training "
            'by: give it one, or job="a name of its own", or LIBCKPT_JOB'
        )
    if job is None:
        project = os.path.realpath(accelerator.project_dir)
        job = _publish_queue.job_of("accelerate", os.path.basename(project), project)
    check(job, dir=dir, **options)
    memory = Memory(accelerator, job, overlap, {"dir": dir, **options})
    accelerator._libckpt = State(accelerator, memory, Folders(accelerator))
    return accelerator._libckpt


class State:
    """Saves and resumes one Accelerator. Without a memory accelerate does all of it itself."""

    def __init__(self, accelerator, memory=None, folders=None):
        self._accelerator, self._memory, self._folders = accelerator, memory, folders
        self._stock_load = accelerator.load_state
        if memory is not None:
            for name in METHODS:
                stock = getattr(accelerator, name)
                setattr(accelerator, name, functools.wraps(stock)(self._with(name, stock)))

    def _is_attached(self):
        return self._memory.is_attached()

    def _detach(self):
        """Leaves the Accelerator its own methods."""
        for name in ("_libckpt", *METHODS):
            vars(self._accelerator).pop(name, None)

    def _with(self, name, stock):
        own = getattr(self, f"_{name}")
        return lambda *arguments, **options: own(stock, *arguments, **options)

    def capture(self, step, *, metrics=None):
        """Captures the step, whose number grows by each call, if it is due. Returns a Ticket.
        `metrics`: numbers by name, as the loss, or a function that returns them, which is called
        if the step is due; `keep_best` goes by those of rank 0.

        Call it on every rank when all of the step is done: the optimizer's and the scheduler's
        part, and what your registered objects count. A batch between two updates, under
        `accelerator.accumulate`, is not due.
        """
        return None if self._memory is None else self._memory.capture(step, metrics)

    def resume(self, *, source=None):
        """Loads the newest of memory and folders; returns its step, 0 when there is none.
        `source`: from "memory" alone, or from "storage": the folders, and `dir`.

        The step is the one that `capture` was given last before it; of a folder that libckpt did
        not write it is 0, and only your registered objects know it.
        """
        _turn.check_source(source)
        if self._memory is None:
            return self._resume_as_stock()
        return self._resume(source=source) or 0

    def _resume_as_stock(self):
        names = Names(self._accelerator)
        folder, step, _ = names.newest()
        names.go_on_after_newest()  # accelerate would number its folders from 0 again.
        if folder is not None:
            self._stock_load(folder)
        return max(step, 0)

    def finish_capture(self):
        """When it returns, the running capture has left the model and the optimizers. Call it
        before anything but an optimizer's step writes into them."""
        if self._memory is not None:
            self._memory.finish_capture()

    def settle(self):
        """Returns when all folders that were saved are there. All ranks call it."""
        if self._folders is not None:
            self._folders.settle()

    # --- in the place of the Accelerator's methods

    def _save_state(self, stock, output_dir=None, safe_serialization=True, **options):
        # A folder newer than memory would be resumed from, and it lacks the order of an epoch.
        self._memory.await_captured()
        steps = {"step": self._memory.step, "updated": self._memory.updated}
        return self._folders.save(stock, steps, output_dir, safe_serialization, **options)

    def _load_state(self, stock, input_dir=None, load_kwargs=None, **options):
        if input_dir is not None:
            self._folders.settle_for(input_dir)
            answer = stock(input_dir, load_kwargs, **options)
            # An evaluation may do this beside a training: memory is not asked before a capture.
            self._memory.go_on_from(self._folders.names.steps_of(input_dir)[0])
            return answer
        if self._resume(load_kwargs, options) is None:
            return stock(None, load_kwargs, **options)  # Raises, as there is nothing.
        return None

    def _skip_first_batches(self, stock, dataloader, num_batches=0):
        skipping = stock(dataloader, num_batches)
        return self._memory.position.resumed(skipping, dataloader, num_batches)

    def _end_training(self, stock):
        self.settle()
        self._memory.end(self._folders.have(self._memory.step))
        return stock()

    def _resume(self, load_kwargs=None, options=None, source=None):
        """The step that was loaded; none: there is nothing."""
        memory, folders = self._memory, self._folders
        memory.open_again()
        folders.open_project()  # So that what a killed run had captured is there.
        folder, folder_step, updated = memory.decide("newest folder", folders.names.newest())
        beside = folder
        restored, folder = memory.restore_newest(source, folder)
        is_later = restored is not None and memory.decide(
            "later folder", folders.names.is_later(folder, memory.position.saves)
        )
        if _resuming.is_memory_newest(
            restored, memory.failure, folder, math.inf if is_later else updated, name=beside
        ):
            memory.take(restored)
            folders.names.go_on_after_newest()
            return restored.step
        if folder is None:
            return None
        self._stock_load(folder, load_kwargs, **(options or {}))
        folders.names.go_on_after_newest()
        memory.go_on_from(max(folder_step, 0))
        return max(folder_step, 0)


def _problem_of(accelerator):
    """Why libckpt cannot be attached; none: it can."""
    kind = accelerator.distributed_type
    missing = [name for name in SEATS if not hasattr(accelerator, name)]
    if missing:
        return f"accelerate {accelerate.__version__} is another one: it has no {missing[0]}"
    if kind == DistributedType.FSDP and not accelerator.is_fsdp2:
        return "it shards by FSDP1, whose flat parameters libckpt does not know: take FSDP2"
    if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA):
        return f"it trains with {kind.value}, whose state is not its own; see the guides for that"
    if accelerator.project_configuration.save_on_each_node:
        return "save_on_each_node wants the same files on every node"
    return ""
