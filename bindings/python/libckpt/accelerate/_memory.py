"""Memory: an Accelerator's prepared and registered objects, captured step by step."""

import contextlib
import logging
import weakref

from libckpt import errors
from libckpt._init import init
from libckpt.accelerate._position import Position
from libckpt.core import _ending, _resuming, _settings, _signals, _unopened
from libckpt.rng import RNG
from libckpt.ticket import Ticket

logger = logging.getLogger("libckpt")

_by_job = weakref.WeakValueDictionary()  # Those that opened a session last.


class Memory:
    """The session of an Accelerator, opened by the first capture or resume: an evaluation beside a
    training, of the same project_dir, does not take its place. Every failure is logged; only that
    of a wrong option raises."""

    def __init__(self, accelerator, job, overlap, options):
        self._accelerator, self._overlap = accelerator, _settings.flag("overlap", overlap)
        self._guarded = []
        self.position = Position(accelerator)
        self.step = -1  # The one that was captured or restored last.
        self.updated = -1  # The newest such step that ended with an optimizer's update.
        self._ticket = None  # The newest capture's.
        # That of the newest step, captured or not, and its metrics. None: training made none yet.
        self._last = self._metrics = None
        self._job, self._options = job, options
        self._session = self._unopened = None
        self._has_opened = False
        self._starts_fresh = False  # Training goes on from elsewhere; the session has not opened.
        self.failure = None  # Why the newest step could not be had.

    @property
    def session(self):
        if not self._has_opened:
            self._open()
        return self._session

    def _open(self):
        self._take_over()
        self._has_opened, self._guarded = True, []
        self._session = self._unopened = None
        try:
            self._session = init(self._job, **self._options)
            _by_job[self._job] = self
        except errors.InvalidArgument:  # A wrong option.
            raise
        except errors.CheckpointError as error:
            logger.error("libckpt: %s; steps are not captured in memory", error)
            self._unopened = _unopened.unopened(error, self._job, **self._options)
        if self._starts_fresh:
            self._start_fresh()

    def _take_over(self):
        """As where a cell of a notebook runs again. The Accelerator that came last has the job."""
        earlier = _by_job.get(self._job)
        if earlier is None or earlier is self or not earlier.is_open():
            return
        logger.warning(
            "libckpt: job %s was attached to another Accelerator of this process: this one takes "
            "it over, and the other one's steps are captured no more", self._job,
        )  # fmt: skip
        earlier.let_go()

    def is_open(self):
        return self._session is not None and not self._session.is_closed

    def let_go(self):
        """As by a restart: its newest step is the next one's to resume."""
        self._session.abandon()

    def is_attached(self):
        """Whether another State would meet this one: it is open, or is still to be."""
        return not self._has_opened or self.is_open()

    def open_again(self):
        """For a resume: another Accelerator had the job since, or its training was over."""
        if self._session is not None and self._session.is_closed:
            self._open()

    def capture(self, step, metrics=None):
        self.step = step
        if self.session is None:
            return None
        if self._session.is_closed:  # Another Accelerator has the job, which was said.
            return Ticket(self._session, step, "skipped_unavailable", 0.0)
        self._guard()
        if not self._accelerator.sync_gradients:
            # Nothing but the gradients has what the batches since the last update gave.
            return Ticket(self.session, step, "not_due", 0.0)
        self.updated, self._metrics = step, metrics
        ticket = self.session.save_checkpoint_if_needed(step, self.items, metrics=metrics)
        self._last, self._ticket = ticket, ticket or self._ticket
        return ticket

    def await_captured(self):
        """When it returns, the capture begun last is whole, or does not come."""
        if self._ticket is not None:
            with contextlib.suppress(errors.CheckpointError):  # It is logged and counted.
                self._ticket.captured.result(_ending.CAPTURE_DEADLINE)
            self._ticket = None

    def _guard(self):
        if self._overlap:
            for optimizer in self._optimizers():
                if not any(optimizer is guarded for guarded in self._guarded):
                    self.session.guard(optimizer)
                    self._guarded.append(optimizer)

    def _optimizers(self):
        return [getattr(one, "optimizer", one) for one in self._accelerator._optimizers]

    def items(self):
        accelerator = self._accelerator
        kinds = {"model": accelerator._models, "optimizer": self._optimizers(),
                 "scheduler": accelerator._schedulers,
                 "custom": accelerator._custom_objects}  # fmt: skip
        items = {f"{kind}_{i}": item for kind, all_ in kinds.items() for i, item in enumerate(all_)}
        if accelerator.scaler is not None:
            items["scaler"] = accelerator.scaler
        return {**items, "rng": RNG(), "place": self.position}

    def restore_newest(self, source, folder):
        """(the newest step that the session has, now in the objects; the folder that is left to
        take). None: there is no step, or `failure` says why not; for the folder, none is to be
        taken. All ranks have it, or none."""
        if self.session is not None:
            self._guard()
        restored, self.failure, folder = _resuming.from_source(
            source, self.session, self._restore_items, folder, self._unopened
        )
        return restored, folder

    def _restore_items(self, source):
        try:
            self._check_states(source)
            return self.session.restore(self.items(), source=source)
        except errors.NotFound:
            self._prepare()
            raise

    def _check_states(self, source):
        """A registered object without a state is no reason to refuse a training that begins. What
        memory has cannot be given to it. All ranks call it."""
        failure = self._state_failure()
        try:
            self.session.agree("states", failure)
        except Exception as error:  # Our own, or another rank's.
            _signals.raise_of_handler(error)
            self.session.restore(shapes_only=True, source=source)  # Raises where nothing is lost.
            raise failure or error from None

    def _state_failure(self):
        for number, item in enumerate(self._accelerator._custom_objects):
            try:
                item.state_dict()
            except Exception as error:
                _signals.raise_of_handler(error)
                name = f"the registered object {number} ({type(item).__name__})"
                logger.warning("libckpt: %s has no state: %s; while that is so, no step is "
                               "captured in memory", name, error)  # fmt: skip
                return errors.Unavailable(f"{name} has no state: {error}")
        return None

    def _prepare(self):
        """Room, so that the first capture need not wait."""
        try:
            self.session.prepare(self.items())
        except Exception as error:  # The state of a registered object may be anything.
            _signals.raise_of_handler(error)
            logger.error("libckpt: memory for the steps is not made before the first of them: %s",
                         error)  # fmt: skip

    def take(self, restored):
        """Training goes on from this step."""
        self.step = self.updated = restored.step
        self._last = None
        self.position.take()

    def go_on_from(self, step):
        """Training goes on from elsewhere, whatever memory has."""
        self.step = self.updated = step
        self._last = None
        self.position.forget()
        self._starts_fresh = True
        if self.is_open():
            self._start_fresh()

    def _start_fresh(self):
        self._starts_fresh = False
        if self._session is None:
            return
        try:
            self.session.start_fresh()
        except errors.CheckpointError as error:
            logger.error("libckpt: %s; steps are not captured in memory", error)

    def decide(self, what, value):
        """As rank 0 says it."""
        if self.session is None:
            return value
        return self.session.ranks.decide(what, value, lambda values: values[0])

    def finish_capture(self):
        if self._session is not None:
            self._session.finish_capture()

    def end(self, is_in_folder):
        """Training is over. The memory is freed if its newest step is on storage: in a folder, as
        rank 0 sees it, or in the session's directory."""
        session, last = self._session, self._last
        if session is None or session.is_closed:
            return
        # The objects are gone behind free_memory(), and changed since an update in the middle of
        # an accumulation.
        has_state = bool(self._accelerator._models) and self.step == self.updated
        try:
            is_in_folder = self.decide("last folder", is_in_folder)
            if last is not None and has_state and (session.dir or not is_in_folder):
                _ending.capture_newest(session, last, self.items, metrics=self._metrics)
            _ending.end(session, None if last is None else self.updated, is_in_folder)
        except errors.CheckpointError as error:
            logger.error("libckpt: %s", error)
