"""Callback: every optimizer step of a fit in memory, and where a fit goes on."""

import contextlib
import logging
import os

from libckpt import errors
from libckpt._init import check, init, with_keywords
from libckpt.core import _left, _resuming, _settings, _unopened
from libckpt.core._ending import CAPTURE_DEADLINE, SLOT_WAIT
from libckpt.core.files import _publish_queue
from libckpt.lightning import _ending, _newest, _unvalidated
from libckpt.lightning._checkpoint_io import Nothing, of_trainer
from libckpt.lightning._first import First
from libckpt.lightning._framework import pl
from libckpt.rng import RNG

logger = logging.getLogger("libckpt")

VERSION = "pytorch-lightning_version"
STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
BLOB_CAPACITY = 32 << 20  # States of other callbacks are in it.
CURE = "fit with ckpt_path=libckpt.lightning.NEWEST"  # Where a step is left behind.


class Callback(pl.Callback):
    """Captures what Lightning would save, after each step of the optimizers.

    job: the name of the run; by default LIBCKPT_JOB, or made from the Trainer's default_root_dir.
    overlap: parameters and optimizer state are copied while the next step runs, until it updates
    them; False: before it begins. `options` are those of `libckpt.init`.
    """

    @with_keywords
    def __init__(self, *, job=None, dir=None, overlap=True, **options):
        check(job, dir=dir, **options)
        self._job, self._overlap = job, _settings.flag("overlap", overlap)
        self._options = {"dir": dir, **options}
        self._is_disabled = _settings.is_disabled(options)
        self.session = self._unopened = None
        self._trainer = self._io = self._stage = None
        self._has_asked = self._has_fitted = False
        self._seen = self._before = -1  # The newest step of the optimizers, and the one before.
        self._captured = -1  # The newest one that memory has, or is to have.
        self._rng = None  # As it was captured, until training has gone on from there.
        self._was_last = False
        self._is_before_validation = False  # The newest step: it is captured behind that.
        self.is_behind_batch = False  # While callbacks are called at a batch's end.

    # --- hooks of Lightning

    def setup(self, trainer, pl_module, stage):
        self._trainer, self._has_asked, self._rng = trainer, False, None
        self._unopened = None
        self._seen = self._captured = -1
        self._io, self._stage = of_trainer(trainer), stage
        if self._io is not None:
            self._io.memory = self
            self._io.is_between_fits = stage != "fit"
            self._finish_files(self._io)  # The other ranks wait behind this hook, and then load.
        if stage != "fit" or self._is_disabled:
            return
        kind = type(trainer.strategy).__name__
        if kind not in STRATEGIES:
            logger.warning(
                "libckpt: steps are not captured in memory: the strategy is %s, whose state is not "
                "that of one process; SingleDeviceStrategy and DDPStrategy are known", kind,
            )  # fmt: skip
            return
        # After the others, whose states are captured, too.
        others = [one for one in trainer.callbacks if one is not self and type(one) is not First]
        trainer.callbacks = [First(self), *others, self]
        self._open(trainer)

    def on_fit_start(self, trainer, pl_module):
        if self.session is not None and any(map(_is_divided, trainer.optimizers)):
            logger.warning(
                "libckpt: steps are not captured in memory: an optimizer divides its state among "
                "the ranks, as ZeroRedundancyOptimizer does, and Lightning gathers it for each save"
            )
            self._let_go()
        if self.session is not None and self._overlap:
            self.session.guard(*trainer.optimizers)
        if self._rng is not None:  # The order of an epoch is drawn soon.
            RNG().load_state_dict(self._rng)

    def on_train_start(self, trainer, pl_module):
        self._seen = trainer.global_step
        if self.session is not None and not self._has_asked:
            if not self._has_fitted:  # A second fit has the module of the first.
                _left.warn(self.session, CURE, self._seen)
            self._start_fresh()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self._io is not None and self._io.has_held_notes() and self._is_in_memory():
            self.release_files()
        if self._rng is not None and not self._was_last:
            RNG().load_state_dict(self._rng)
        self._rng = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.is_behind_batch = False
        is_made = self.session is not None and trainer.global_step != self._seen
        if is_made:  # Else gradients are being accumulated, which no checkpoint has.
            self._before, self._seen = self._seen, trainer.global_step
            # Lightning takes a validation behind the step that it resumes from for made. So the
            # step before stays in memory until it is.
            self._is_before_validation = _unvalidated.is_next(trainer)
            if not self._is_before_validation:
                self._capture()
        self._hold_no_more()

    def on_validation_end(self, trainer, pl_module):
        is_new = self.session is not None and self._captured < self._seen
        if is_new and (self._has_file() or self._is_before_validation and not self._is_left()):
            self._capture()
        self._is_before_validation = False
        self._hold_no_more()

    def _is_left(self):
        """Whether the training stops here, which a resume from this step would not know; one from
        the step before, which memory must have for that, makes the validation that stops it. A step
        that may be on its way to storage is captured all the same."""
        is_before_captured = self._before == self._captured and not self.session.dir
        return self._trainer.should_stop and is_before_captured

    def step_before_validation(self):
        """For a file that is saved now: the step in memory that makes a validation again, which
        follows and is not in the file. None: none follows, or memory has none before it."""
        if self.session is None or not self.is_behind_batch or self._captured < 0:
            return None
        is_older = self._captured < self._trainer.global_step
        return self._captured if is_older and _unvalidated.is_next(self._trainer) else None

    def _has_file(self):
        files = self._trainer.checkpoint_callbacks
        return self._seen in {getattr(one, "_last_global_step_saved", -1) for one in files}

    def _capture(self):
        step, items, more = self._seen, self._items, {"metrics": self._metrics()}
        # A file has no random generators, so that memory must not be older. Nothing comes after the
        # last step, which another fit may go on from.
        is_wanted = self._has_file() or step == self._trainer.max_steps
        if not is_wanted:
            ticket = self.session.save_checkpoint_if_needed(step, items, **more)
        else:
            ticket = self.session.save(step, items, SLOT_WAIT, **more)
        if ticket:
            self._captured = step
        if ticket and is_wanted:
            with contextlib.suppress(errors.CheckpointError):  # It is logged and counted.
                ticket.captured.result(CAPTURE_DEADLINE)
        return ticket

    def _items(self):
        trainer = self._trainer
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        return {"checkpoint": checkpoint, "rng": RNG(), "is_last": bool(trainer.is_last_batch)}

    def _metrics(self):
        """Only the one that counts: to read it from a GPU waits for that."""
        name = self._options.get("best_metric") or _settings.configured("best_metric")
        value = self._trainer.callback_metrics.get(name) if name else None
        return {} if value is None else {name: float(value)}

    # --- files, which come when memory has their steps, so that it is not older than they

    def hold_files(self):
        """Those that are saved now have their step in memory soon."""
        self.release_files()
        if self._io is not None and self.session is not None:
            self._io.holds_notes = True

    def _hold_no_more(self):
        if self._io is not None:
            self._io.holds_notes = False
            if self._captured < self._seen:  # The step is not to be in memory.
                self.release_files()

    def release_files(self):
        if self._io is not None:
            self._io.holds_notes = False
            self._io.release_notes()

    def _is_in_memory(self):
        return self.session is None or (self.session.latest or 0) >= self._captured

    def finish_capture(self):
        """When it returns, the running capture has left the module and the optimizers. Call it
        before anything but an optimizer's step writes into them."""
        if self.session is not None:
            self.session.finish_capture()

    def teardown(self, trainer, pl_module, stage):
        self._leave_fit()
        if self.session is not None and stage == "fit":
            session, self.session = self.session, None
            self._has_fitted = True
            _ending.end(session, trainer, self._captured >= 0, self._has_file())

    def on_exception(self, trainer, pl_module, exception):
        self._leave_fit()
        self._let_go()  # A new trainer may want the state.

    def _let_go(self):
        session, self.session = self.session, None
        if session is not None:
            session.abandon()

    def _leave_fit(self):
        self.release_files()
        if self._io is not None:
            self._io.is_between_fits = True

    # --- resuming

    def load_newest(self, io, source, map_location, weights_only):
        """The CheckpointIO's answer to `ckpt_path=NEWEST`. All ranks call it."""
        self._has_asked = True
        self._finish_files(io)  # A ModelCheckpoint without dirpath has it since its own setup.
        file, file_step, remade_by = self._newest_file()
        if self._stage != "fit" and (file is None or source == "memory"):
            raise _newest.nothing_to_evaluate(self._stage, self._directories())
        session, name, source = self.session, file, None if self._is_disabled else source
        restored, failure, file = _resuming.from_source(
            source, session, lambda source: session.restore(source=source), file, self._unopened
        )
        has_older = restored is not None and restored.step < file_step
        if has_older and remade_by is not None and remade_by <= restored.step:
            file_step, name = restored.step, f"{name}, saved before its validation"
        if _resuming.is_memory_newest(restored, failure, file, file_step, "file", name):
            self._rng = restored.items["rng"]
            self._was_last = restored.items["is_last"]
            self._captured = restored.step
            return restored.items["checkpoint"]
        if file is None:
            return Nothing({VERSION: pl.__version__})
        if session is not None:
            self._start_fresh()
        return io.load_checkpoint(file, map_location, weights_only)

    def _open(self, trainer):
        root = os.path.realpath(trainer.default_root_dir)
        job = _settings.job(self._job) or _publish_queue.job_of(
            "lightning", os.path.basename(root), root
        )
        options = self._options
        if not _settings.configured("blob_capacity"):
            options = {"blob_capacity": BLOB_CAPACITY, **options}
        try:
            self.session = init(job, **options)
        except errors.InvalidArgument:  # A wrong option.
            raise
        except errors.CheckpointError as error:
            logger.error("libckpt: %s; steps are not captured in memory", error)
            self._unopened = _unopened.unopened(error, job, **options)

    def _start_fresh(self):
        try:
            self.session.start_fresh()
        except errors.CheckpointError as error:
            logger.error("libckpt: %s; steps are not captured in memory", error)

    def _newest_file(self):
        """(its path, its step, the step in memory that is better), as rank 0 sees it; (None, -1,
        None): there is none."""
        found = _newest.NOTHING
        if self._trainer.is_global_zero:
            found = self._find_file()
        if self.session is None:  # On all ranks.
            return self._trainer.strategy.broadcast(found)
        return self.session.ranks.decide("newest file", found, lambda values: values[0])

    def _finish_files(self, io):
        for directory in self._directories() if self._trainer.is_global_zero else ():
            io.finish(directory)

    def _directories(self):
        callbacks = self._trainer.checkpoint_callbacks
        return filter(os.path.isdir, {getattr(one, "dirpath", None) or "" for one in callbacks})

    def _find_file(self):
        """Finds a file in the directories of ModelCheckpoint."""
        return _newest.find(self._directories(), self._stage == "fit")


def _is_divided(optimizer):
    return hasattr(getattr(optimizer, "optimizer", optimizer), "consolidate_state_dict")
