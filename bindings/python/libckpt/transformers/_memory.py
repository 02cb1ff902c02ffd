"""Trainer memory: the state that a Trainer of Transformers goes on from, captured at every step."""

import atexit
import contextlib
import dataclasses
import json
import logging
import weakref

from torch.nn.parallel import DistributedDataParallel

from libckpt import errors
from libckpt.core import _ending, _left, _resuming, _settings, _signals, _unopened
from libckpt._init import init
from libckpt.rng import RNG

logger = logging.getLogger("libckpt")

BLOB_CAPACITY = 32 << 20  # The history of logged values is in it.
CURE = "call train(resume_from_checkpoint=True)"  # Where a step is left behind.
LEAVE_DEADLINE = 10.0  # At the end of the program, for the other ranks.
_by_job = weakref.WeakValueDictionary()  # Those that opened a session last.
_all = weakref.WeakSet()
_over = weakref.WeakSet()  # Their trainings ended well, and have their last step on storage.
TOTALS = {  # By name among the items, the Trainer's field.
    "total_loss": "_total_loss_scalar",
    "last_logged": "_globalstep_last_logged",
    "initial_step": "_initial_global_step",
    "flos": "current_flos",
}


class TrainerMemory:
    """The session that a Trainer's steps are captured in; every failure is logged, and none is
    raised but that of a wrong option."""

    def __init__(self, trainer, job, overlap, options):
        self._trainer, self._job = trainer, job
        self.is_training = False
        self._captured = -1
        self._has_asked = False  # Memory for its newest step.
        self._has_begun = False  # A training.
        self._overlap = _settings.flag("overlap", overlap)
        self.failure = None  # Why the newest step could not be had.
        if not _settings.configured("blob_capacity"):
            options = {"blob_capacity": BLOB_CAPACITY, **options}
        self._options = options
        self.session = self._unopened = self._guarded = None
        self._has_opened = False
        _all.add(self)

    def _open(self):
        """Not before a training: an evaluation beside one, of the same output_dir, does not take
        its place.

        Of the Trainers of one job in a process, the one that trains has the session: as where a
        cell of a notebook runs again, or another Trainer goes on with more steps."""
        earlier = _by_job.get(self._job)
        if earlier is not None and not earlier.is_training and earlier.session is not None:
            earlier.session.abandon()  # As by a restart: its newest step is this one's to resume.
        job, options = self._job, self._options
        self._has_opened = True
        self.session = self._unopened = self._guarded = None
        try:
            self.session = init(job, **options)
            _by_job[job] = self
        except errors.CheckpointError as error:
            if _unopened.is_wrong_option(error):
                raise
            logger.error("libckpt: %s; steps are not captured in memory", error)
            self._unopened = _unopened.unopened(error, job, **options)

    @contextlib.contextmanager
    def training(self):
        # Closed: another Trainer had it since.
        if not self._has_opened or self.session is not None and self.session.is_closed:
            self._open()
        self.is_training = True
        try:
            yield
        finally:
            self.is_training = False

    def begin(self):
        """The optimizer exists: the first capture is prepared, and guarded from then on."""
        if not self._has_opened:  # The callback was added when training had begun.
            self._open()
        _over.discard(self)  # A second train() is captured like the first.
        self._captured = self._trainer.state.global_step
        if self.session is None:
            return
        self._guard()
        try:
            self.session.prepare(self.items(), arrays=self.arrays())
        except Exception as error:  # The state of a callback, or of an engine, may be anything.
            _signals.raise_of_handler(error)
            logger.error(
                "libckpt: memory for the Trainer's steps is not made before the first of them: %s",
                error,
            )
        if not self._has_asked:  # The Trainer decides where training begins, not memory.
            if not self._has_begun:  # A second train() has the model of the first.
                _left.warn(self.session, CURE, self._captured)
            self.start_fresh()
        self._has_asked, self._has_begun = False, True  # The next one begins where it says.

    def _guard(self):
        optimizer = self._trainer.optimizer
        if self._overlap and self._guarded is not optimizer:
            self.session.guard(optimizer)
            self._guarded = optimizer

    def capture(self, is_last=False):
        """Captures the state after the newest step, once; the last one of a training due or not."""
        step = self._trainer.state.global_step
        if self.session is None or step <= self._captured:
            return
        self._captured = step
        more = {"arrays": self.arrays, "metrics": metrics_of(self._trainer.state)}
        if not is_last:
            self.session.save_checkpoint_if_needed(step, self.items, **more)
            return
        ticket = self.session.save(step, self.items, _ending.SLOT_WAIT, **more)
        if ticket:  # The Trainer may load its best model next, over what is being copied.
            with contextlib.suppress(errors.CheckpointError):  # It is logged and counted.
                ticket.captured.result(_ending.CAPTURE_DEADLINE)

    def arrays(self):
        """Parts of larger tensors that are no part of an item."""
        return ()

    def items(self):
        trainer = self._trainer
        items = {
            "model": _declared(trainer),
            "optimizer": trainer.optimizer,
            "scheduler": trainer.lr_scheduler,
            "rng": RNG(),
            "state": state_json(trainer),
            "totals": totals_of(trainer),
        }
        scaler = getattr(trainer.accelerator, "scaler", None)
        return items if scaler is None else {**items, "scaler": scaler}

    def newest(self, source=None, folder=None):
        """(the newest step that the session has, the folder that is left to take). No step: there
        is none, or `failure` says why not; no folder: none is to be taken.

        All ranks have the step, or none.
        """
        self._has_asked = True
        restored, self.failure, folder = _resuming.from_source(
            source, self.session, self._restored, folder, self._unopened
        )
        return restored, folder

    def _restored(self, source):
        restored = self.session.restore(source=source)
        problem = _problem_of(restored, self._trainer)
        if problem is not None:
            raise errors.InvalidArgument(
                f"step {restored.step} from {restored.source_name} does not fit this Trainer: "
                f"{problem}; train(resume_from_checkpoint=False) and another output_dir begin anew"
            )
        return restored

    def ended(self, folders):
        """train() has returned. Where nothing is left to train and the last step is on storage,
        nobody comes back for the memory: it is freed when the program ends."""
        state = self._trainer.state
        is_done = 0 < state.max_steps <= state.global_step
        if self.session is None or self.session.is_closed:
            return
        try:
            is_stored = _ending.is_in_directory(self.session, state.global_step)
            if is_done and (is_stored or folders.newest_whole() == state.global_step):
                _over.add(self)
        except errors.CheckpointError as error:
            logger.error("libckpt: %s", error)

    def start_fresh(self):
        """Training goes on from elsewhere, whatever memory has."""
        if self.session is None:
            return
        try:
            self.session.start_fresh()
        except errors.CheckpointError as error:
            logger.error("libckpt: %s; steps are not captured in memory", error)


@atexit.register
def _leave():
    for memory in list(_over):
        with contextlib.suppress(errors.CheckpointError):
            memory.session.close(LEAVE_DEADLINE)
    for memory in [each for each in _all if each.session is not None]:
        with contextlib.suppress(errors.CheckpointError):
            memory.session.abandon()
        memory.session = None  # DeepSpeed keeps the Trainer until the last moment.


def metrics_of(state):
    """The metrics of the newest step, its evaluation included: `keep_best` goes by them."""
    found = {}
    for entry in reversed(state.log_history):
        if entry.get("step") != state.global_step:
            break
        found = entry | found
    return {name: value for name, value in found.items() if isinstance(value, float)}


def state_json(trainer):
    """trainer_state.json, as a checkpoint of this moment would have it."""
    from transformers.trainer_callback import ExportableState  # Old versions have none.

    state = trainer.state
    for callback in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(callback, ExportableState):
            name = type(callback).__name__
            if isinstance(state.stateful_callbacks.get(name), list):
                continue  # Several have one name: Transformers keeps the state of each itself.
            state.stateful_callbacks[name] = callback.state()
    return json.dumps(dataclasses.asdict(state), sort_keys=True)


def _declared(trainer):
    """The model in its DistributedDataParallel, which declares what is the same on all ranks."""
    if isinstance(trainer.model_wrapped, DistributedDataParallel):
        return trainer.model_wrapped
    return trainer.accelerator.unwrap_model(trainer.model)


def totals_of(trainer):
    """The sums of the loop between two lines of its log."""
    return {
        "loss": trainer._tr_loss.detach() if hasattr(trainer, "_tr_loss") else None,
        **{name: getattr(trainer, field, 0) for name, field in TOTALS.items()},
    }


def give_totals(trainer, totals):
    if totals["loss"] is not None:
        trainer._tr_loss = totals["loss"].to(trainer.args.device).clone()
    for name, field in TOTALS.items():
        setattr(trainer, field, totals[name])


def _problem_of(restored, trainer):
    """Why the Trainer could not take all of it; none: it can."""
    values = restored.items
    missing = {"model", "optimizer", "scheduler", "rng", "state", "totals"} - values.keys()
    if missing:
        return f"it has no {', '.join(sorted(missing))}"
    if json.loads(values["state"]).get("global_step") != restored.step:
        return "its trainer state is of another step"
    here = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    there = values["model"]
    apart = sorted(here.keys() ^ there.keys())
    if apart:
        return f'"{apart[0]}" is in one of the two models only'
    for name, part in here.items():
        found = there[name]
        if hasattr(part, "shape") and part.shape != getattr(found, "shape", None):
            return f'"{name}" is {list(part.shape)} in the model, and {list(found.shape)} there'
    return None
