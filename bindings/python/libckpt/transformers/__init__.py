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
import sys
import types

import transformers

from libckpt import errors
from libckpt.core.files import _publish_queue
from libckpt._init import with_keywords
from libckpt.transformers._checkpoints import TrainerFolders
from libckpt.transformers._memory import Resumed, TrainerMemory

__all__ = ["Callback", "TrainerWrapper", "finish_capture"]

logger = logging.getLogger("libckpt")

VERSION_MIN = 5
LOADERS = {  # The Trainer's methods that load a checkpoint, and what stands for them.
    "_load_from_checkpoint": Resumed.give_model,
    "_load_optimizer_and_scheduler": Resumed.give_optimizer,
    "_load_rng_state": Resumed.give_rng,
}


@with_keywords
def TrainerWrapper(  # noqa: N802  A name that users of EasyCkpt know.
    trainer, *, job=None, dir=None, overlap=True, **options
):
    """The same Trainer, with memory behind it. `options` are those of `libckpt.init`.

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
    latest. What was added so late captures and publishes from then on; it could not be asked where
    to resume from. Options are those of TrainerWrapper."""

    @with_keywords
    def __init__(self, *, job=None, dir=None, overlap=True, **options):
        self._job = job
        self._overlap = overlap
        self._options = {"dir": dir, **options}
        self._is_refused = False
        self._trainer = None
        self._memory = None
        self._folders = None
        self._resumed = None

    def attach(self, trainer):
        """Replaces methods of this instance, as far as its class has Transformers' own."""
        if self._trainer is not None:
            return
        problem = _problem_of(trainer)
        self._is_refused = bool(problem)
        if problem:
            logger.warning("libckpt: the Trainer is left as it is: %s", problem)
            return
        self._trainer = trainer
        output = os.path.realpath(trainer.args.output_dir)
        job = self._job or _publish_queue.job_of("trainer", os.path.basename(output), output)
        self._memory = TrainerMemory(trainer, job, self._overlap, self._options)
        self._folders = TrainerFolders(trainer, f"{job}-files")
        self._wrap("train", self._train, always=True)
        self._wrap("_save_checkpoint", self._folders.save, always=True)
        self._wrap("_finalize_training", self._finalize, always=True)
        self._wrap("_save", self._folders.keep_weights)
        self._wrap("_save_optimizer_and_scheduler", self._folders.keep_optimizer)
        for name, give in {**LOADERS, "_load_scaler": Resumed.give_scaler}.items():
            self._wrap(name, functools.partial(self._load, give))

    def _wrap(self, name, method, always=False):
        """`method(stock, ...)` in the place of the Trainer's; an overridden one runs as it is."""
        stock = getattr(self._trainer, name, None)
        if stock is None or not (always or _is_stock(self._trainer, name)):
            return

        def wrapped(_, *arguments, **options):
            return method(stock, *arguments, **options)

        setattr(self._trainer, name, types.MethodType(wrapped, self._trainer))

    # --- resuming ---

    def _train(self, stock, resume_from_checkpoint=None, *arguments, **options):
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self._newest()
        answer = stock(resume_from_checkpoint, *arguments, **options)
        _publish_queue.settle(wait=True)  # For versions that train without _finalize.
        return answer

    def _publish_left(self):
        with self._trainer.args.main_process_first(local=False, desc="what a run before left"):
            if self._trainer.is_world_process_zero():
                self._folders.finish()

    def _newest(self):
        """Where to resume from: a folder, or one that stands for memory; none: nowhere."""
        self._publish_left()
        folders = self._folders.folders()
        number = folders.newest_whole()
        can_load = all(_is_stock(self._trainer, name) for name in LOADERS)
        restored = self._memory.newest() if can_load else None
        if restored is not None and (number is None or restored.step >= number):
            folder = folders.private / "resume" / f"checkpoint-{restored.step}"
            self._resumed = Resumed(restored, folder)
            with self._trainer.args.main_process_first(desc="where to resume from"):
                if self._trainer.is_local_process_zero():
                    self._resumed.write_state()
            logger.warning("libckpt: resumes step %d from %s; the newest folder is %s",
                           restored.step, restored.source_name, number)  # fmt: skip
            return self._resumed.folder
        if number is None:
            if self._memory.failure is not None:
                raise self._memory.failure  # There is something: do not begin anew over it.
            logger.warning("libckpt: nothing to resume from: training begins at step 0")
            return None
        if self._memory.failure is not None:
            logger.error("libckpt: resume from memory: %s; resumes from %s instead",
                         self._memory.failure, folders.path(number))  # fmt: skip
            self._memory.start_fresh()
        elif restored is not None:
            logger.warning("libckpt: resumes from %s, which is newer than step %d in memory",
                           folders.path(number), restored.step)  # fmt: skip
        return str(folders.path(number))

    def _load(self, give, stock, folder, *arguments, **options):
        """One of LOADERS: from memory, when training resumes from there."""
        if self._resumed is None or folder != self._resumed.folder:
            return stock(folder, *arguments, **options)
        return give(self._resumed, self._trainer, *arguments, **options)

    # --- training ---

    def on_init_end(self, args, state, control, **_):
        trainer = _calling_trainer()
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
        trainer = _calling_trainer()
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

    def _capture(self):
        """After everything that belongs to the step before: its log, evaluation and save."""
        if self._trainer is not None:
            self._memory.capture()

    def _finalize(self, stock, *arguments, **options):
        _publish_queue.settle(wait=True)  # The best one may be read now, by every rank.
        self._trainer.accelerator.wait_for_everyone()
        return stock(*arguments, **options)


def _problem_of(trainer):
    if int(transformers.__version__.partition(".")[0]) < VERSION_MIN:
        return (
            f"Transformers {transformers.__version__} is installed, whose Trainer is another one: "
            f"its steps are not captured in memory; libckpt wants {VERSION_MIN}.0 or newer"
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return (
            "it is sharded by DeepSpeed or FSDP, whose pieces libckpt.transformers does not know: "
            "its steps are not captured in memory, and Transformers writes its checkpoints itself"
        )
    return None


def _is_stock(trainer, name):
    """Whether the class has Transformers' own method: a subclass may have replaced it."""
    return getattr(type(trainer), name, None) is getattr(transformers.Trainer, name, None)


def _calling_trainer():
    """The Trainer that calls on_init_end.

    Transformers hands its callbacks the model, the state, the arguments and more, and none of it
    refers to the Trainer; yet where to resume from is asked in train() before the first event. So
    the caller's frame is searched. `TrainerWrapper` needs none of this.
    """
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, transformers.Trainer):
            return caller
        frame = frame.f_back
    return None
