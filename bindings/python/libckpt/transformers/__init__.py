"""libckpt for the Trainer of Transformers: one line more.

    trainer = libckpt.transformers.TrainerWrapper(trainer)
    trainer.train(resume_from_checkpoint=True)

or `callbacks=[libckpt.transformers.Callback()]`. Every step is captured in memory that outlives the
process; `checkpoint-N` folders, in Transformers' own format, appear complete or not at all; a
resume takes memory when that is newer than the newest folder.
"""

import functools
import logging
import os
import types

import transformers

from libckpt import errors
from libckpt.core import _settings
from libckpt.core._resuming import NEWEST, source_in
from libckpt.core.files import _publish_queue
from libckpt._init import check, with_keywords
from libckpt.transformers._checkpoints import TrainerFolders
from libckpt.transformers._memory import TrainerMemory
from libckpt.transformers._resumed import Resumed
from libckpt.transformers._resuming import (
    ShardedResume,
    from_source,
    is_from_memory,
    newest_for_all,
)
from libckpt.transformers._sharded_folders import ShardedFolders
from libckpt.transformers._sharded_memory import ShardedMemory
from libckpt.transformers._trainers import calling_trainer, is_sharded, is_stock, problem_of

__all__ = ["NEWEST", "Callback", "TrainerWrapper", "finish_capture"]

logger = logging.getLogger("libckpt")

LOADERS = {  # The Trainer's methods that load a checkpoint, and what stands for them.
    "_load_from_checkpoint": "give_model",
    "_load_optimizer_and_scheduler": "give_optimizer",
    "_load_rng_state": "give_rng",
}


@with_keywords
def TrainerWrapper(  # noqa: N802  A name that users of EasyCkpt know.
    trainer, *, job=None, dir=None, overlap=True, **options
):
    """The same Trainer, with memory behind it. `options` are those of `libckpt.init`. The job is
    opened when train() begins: evaluate() and predict() take nothing from a training that runs.

    job: the name of the run; by default LIBCKPT_JOB, or made from the Trainer's output_dir.
    overlap: parameters and optimizer state are copied while the next step runs, until it updates
    them; False: before it begins.
    """
    callback = Callback(job=job, dir=dir, overlap=overlap, **options)
    trainer.add_callback(callback)
    callback.attach(trainer)
    return trainer


def finish_capture(trainer):
    """When it returns, the running capture has left the model and the optimizer.

    For callbacks that write tensors through `.data` between two steps, which nobody can notice: an
    average of the weights that is swapped in for an evaluation, say. Call it before the first
    write.
    """
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, Callback):
            callback.finish_capture()


class Callback(transformers.TrainerCallback):
    """Attaches itself to the Trainer that it is given to, when the first training begins at the
    latest. A callback that was added so late captures and publishes from then on; it could not be
    asked where to resume from. Options are those of TrainerWrapper."""

    @with_keywords
    def __init__(self, *, job=None, dir=None, overlap=True, **options):
        check(job, dir=dir, **options)
        self._job = job
        self._overlap = _settings.flag("overlap", overlap)
        self._options = {"dir": dir, **options}
        self._is_refused = False
        self._trainer = None
        self._memory = None
        self._folders = None
        self._sharded = None  # How a sharded Trainer resumes.
        self._resumed = None  # The source of a resume, until the first step.

    def attach(self, trainer):
        """Replaces methods of this instance, as far as its class has Transformers' own."""
        if self._trainer is not None:
            return
        if is_sharded(trainer) and self._is_disabled():
            self._is_refused, self._trainer = True, trainer
            self._wrap("train", _train_by_stock, always=True)
            self._trainer = None
            return
        problem = problem_of(trainer)
        self._is_refused = bool(problem)
        if problem:
            logger.warning("libckpt: the Trainer is left as it is: %s", problem)
            return
        self._trainer = trainer
        output = os.path.realpath(trainer.args.output_dir)
        job = _settings.job(self._job) or _publish_queue.job_of(
            "trainer", os.path.basename(output), output
        )
        if is_sharded(trainer):
            self._memory = ShardedMemory(trainer, job, self._options)
            self._folders = ShardedFolders(trainer, self._options)
            self._sharded = ShardedResume(trainer, self._memory, self._folders)
            self._wrap("_init_training_state", self._sharded.init_state, always=True)
            self._wrap("_prepare_for_training", self._sharded.prepare, always=True)
        else:
            self._memory = TrainerMemory(trainer, job, self._overlap, self._options)
            self._folders = TrainerFolders(trainer, f"{job}-files", self._is_disabled())
        self._wrap("train", self._train, always=True)
        self._wrap("_save_checkpoint", self._folders.save, always=True)
        self._wrap("_finalize_training", self._finalize, always=True)
        self._wrap("_save", self._folders.keep_weights)
        if not is_sharded(trainer):
            self._wrap("_save_optimizer_and_scheduler", self._folders.keep_optimizer)
        for name, give in {**LOADERS, "_load_scaler": "give_scaler"}.items():
            self._wrap(name, functools.partial(self._load, give))

    def _is_disabled(self):
        return _settings.is_disabled(self._options)

    def _wrap(self, name, method, always=False):
        """`method(stock, ...)` in the place of the Trainer's; an overridden one runs as it is."""
        stock = getattr(self._trainer, name, None)
        if stock is None or not (always or is_stock(self._trainer, name)):
            return

        def wrapped(_, *arguments, **options):
            return method(stock, *arguments, **options)

        setattr(self._trainer, name, types.MethodType(wrapped, self._trainer))

    # --- resuming ---

    def _train(self, stock, resume_from_checkpoint=None, *arguments, **options):
        is_newest, source = _newest_in(resume_from_checkpoint)
        with self._memory.training():
            if is_newest:
                resume_from_checkpoint = self._newest(None if self._is_disabled() else source)
            answer = stock(resume_from_checkpoint, *arguments, **options)
        _publish_queue.settle(wait=True)  # For versions that train without _finalize.
        self._memory.ended(self._folders.folders())
        return answer

    def _publish_left(self):
        if self._sharded is not None:
            self._folders.finish()
            return
        args = self._trainer.args
        each = args.save_on_each_node
        with args.main_process_first(local=each, desc="leftovers of an earlier run"):
            if args.should_save:
                self._folders.finish()

    def _newest(self, source):
        """Where to resume from: a folder, or one that stands for memory; none: nowhere."""
        self._publish_left()
        folders = self._folders.folders()
        can_load = all(is_stock(self._trainer, name) for name in LOADERS)
        if self._sharded is not None and can_load and self._memory.session is not None:
            self._resumed, self._sharded.source = self._sharded, source
            self._sharded.write_state()
            return self._sharded.folder
        session = self._memory.session
        number = beside = newest_for_all(folders, None if session is None else session.ranks)
        restored, is_early = None, self._sharded is None or session is None
        if can_load and is_early:
            restored, number = from_source(self._memory, folders, number, source)
        elif source == "memory":
            raise errors.InvalidArgument(
                "resume_from_checkpoint: memory alone: the Trainer's class loads folders in ways "
                "of its own, and cannot take a step from memory"
            )
        if is_from_memory(self._memory, restored, folders, number, beside):
            folder = folders.private / "resume" / f"checkpoint-{restored.step}"
            self._resumed = Resumed(restored, folder)
            with self._trainer.args.main_process_first(desc="where to resume from"):
                if self._trainer.is_local_process_zero():
                    self._resumed.write_state()
            return self._resumed.folder
        return None if number is None else str(folders.path(number))

    def _load(self, give, stock, folder, *arguments, **options):
        """One of LOADERS: from memory, when training resumes from there."""
        if self._resumed is None or folder != self._resumed.folder:
            return stock(folder, *arguments, **options)
        return getattr(self._resumed, give)(self._trainer, *arguments, **options)

    # --- training ---

    def on_init_end(self, args, state, control, **_):
        trainer = calling_trainer()
        if trainer is not None:
            self.attach(trainer)

    def on_train_begin(self, args, state, control, **_):
        if self._trainer is None and not self._is_refused:
            self._attach_late(state)
        if self._trainer is None:
            return
        if self._resumed is not None:
            self._resumed.give_totals(self._trainer)
        self._memory.begin()

    def _attach_late(self, state):
        """Attaches to a Trainer that was made before the callback: its on_init_end is over."""
        trainer = calling_trainer()
        if trainer is None:
            raise errors.InvalidArgument(
                "libckpt.transformers.Callback cannot find the Trainer that training begins with: "
                "call attach(trainer), or give the Trainer to TrainerWrapper"
            )
        self.attach(trainer)
        if self._trainer is not None and state.global_step > 0:
            logger.warning(
                "libckpt: the callback was added after the Trainer had been made: Transformers "
                "resumed step %d from a folder, and memory, which may be newer, was not asked; "
                "give it as callbacks=[...], or the Trainer to TrainerWrapper",
                state.global_step,
            )
            self._publish_left()

    def finish_capture(self):
        """As the function of this name."""
        if self._memory is not None and self._memory.session is not None:
            self._memory.session.finish_capture()

    def on_epoch_begin(self, args, state, control, **_):
        self._capture()

    def on_step_begin(self, args, state, control, **_):
        self._resumed = None
        self._capture()

    def on_train_end(self, args, state, control, **_):
        if not args.load_best_model_at_end:  # For versions that train without _finalize.
            self._capture(is_last=True)

    def _capture(self, is_last=False):
        """After everything that belongs to the step before: its log, evaluation and save."""
        if self._trainer is not None:
            self._memory.capture(is_last)

    def _finalize(self, stock, *arguments, **options):
        self._capture(is_last=True)  # Before the best model is loaded, and the whole is logged.
        _publish_queue.settle(wait=True)  # The best one may be read now, by every rank.
        self._trainer.accelerator.wait_for_everyone()
        return stock(*arguments, **options)


def _newest_in(given):
    """(whether `resume_from_checkpoint` asks for the newest, the source that it names or None)."""
    return source_in(given) if isinstance(given, str) else (given is True, None)


def _train_by_stock(stock, resume_from_checkpoint=None, *arguments, **options):
    if _newest_in(resume_from_checkpoint)[0]:
        resume_from_checkpoint = True  # As Transformers spells it.
    return stock(resume_from_checkpoint, *arguments, **options)
