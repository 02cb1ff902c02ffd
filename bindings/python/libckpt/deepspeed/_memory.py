"""Memory: the session that an engine's steps are captured in, and restored from."""

import logging
import os

from libckpt import errors
from libckpt._init import init
from libckpt.core import _ending, _resuming, _settings
from libckpt.deepspeed import _state

logger = logging.getLogger("libckpt")

BLOB_CAPACITY = 8 << 20  # Client state, and the steps of many parameters, are in it.


class Memory:
    """A failure is logged, and none is raised, but by newest()."""

    def __init__(self, engine, layout, job, given, options):
        self._engine, self._state = engine, _state.EngineState(engine, layout)
        self._client_state, self._metrics = given
        self._client_keys = None  # Those that the newest save_checkpoint was given; None: none was.
        self._folders = []  # Where this run loads from, and saves to.
        self._captured = engine.global_steps
        self._last = None  # The ticket of the newest step; none: training made none yet.
        self._has_begun = self._has_asked = False
        if not _settings.configured("blob_capacity"):
            options = {"blob_capacity": BLOB_CAPACITY, **options}
        self.session = init(job, rank=layout.rank, world_size=layout.ranks, **options)

    def check_folder(self, call, folder):
        """Both libckpt and DeepSpeed write a file `latest`, in formats of their own."""
        own = self.session.dir
        if own and folder and os.path.realpath(own) == os.path.realpath(folder):
            raise errors.InvalidArgument(
                f"{call}: {folder} is the dir of attach, where libckpt keeps checkpoints of its "
                "own: both would write its file latest. Give one of them another directory"
            )

    def note_folder(self, folder, client_state=None):
        """A later resume from another folder is not one from this memory."""
        folder = os.path.realpath(folder)
        if folder not in self._folders:
            self._folders.append(folder)
        if client_state is not None:
            self._client_keys = sorted(map(str, client_state))

    def capture(self):
        """Captures the state after the newest step, once."""
        step = self._engine.global_steps
        if self.session.is_closed or step <= self._captured:
            return
        self._captured = step
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self._has_asked:  # Training does not go on from what memory has.
            self.start_fresh()
        self._last = ticket = self.session.save_checkpoint_if_needed(
            step, self._items, arrays=self._state.arrays, metrics=self._metrics
        )
        if is_first and not self._has_asked and _resuming.was_refused(self.session, ticket):
            logger.error(
                "libckpt: no step is captured in memory: after attach, call engine.load_checkpoint "
                "or libckpt.deepspeed.resume(engine); to begin anew, give attach another job"
            )

    def capture_newest(self):
        """Captures the newest step once more, if it was not due or found no free Slot: the training
        may be over. All ranks call it."""
        if self._last is not None and not self.session.is_closed:
            self._last = _ending.capture_newest(
                self.session, self._last, self._items, arrays=self._state.arrays,
                metrics=self._metrics,
            )  # fmt: skip

    def end(self, folders):
        """Training is over. The memory is freed if its newest step is on storage."""
        if self.session.is_closed:
            return
        step = None if self._last is None else self._last.step
        is_in_folder = step is not None and folders.has_step(step)
        if self.session.dir or not is_in_folder:
            self.capture_newest()
        _ending.end(self.session, step, is_in_folder)

    def _items(self):
        return self._state.items() | {
            "client_state": self.client_state(),
            "client_keys": self._client_keys,
            "folders": self._folders,
        }

    def client_state(self):
        """The client state that attach was given, as it is now."""
        state = self._client_state
        return dict(state() if callable(state) else state or {})

    def newest(self, folder=None, client_keys=(), source=None):
        """The newest step that all ranks can have, with the items but not the tensors. None: there
        is none for that folder, whose client state has these keys. Raises when there is one, which
        does not fit."""
        self._has_asked = True
        try:
            found = self._state.newest(self.session, source)
        except errors.NotFound:
            return None
        refusals = self.session.ranks.exchange("refusal", _refusal(found, folder, client_keys))
        refusal = next((each for each in refusals if each is not None), None)
        if refusal is not None:
            logger.warning("libckpt: step %d in memory is not resumed from: %s",
                           found.step, refusal)  # fmt: skip
            return None
        return found

    def give(self, found, source=None):
        """Fills the engine with what newest() found; returns the client state."""
        items = found.items
        self._state.give(self.session, found, source=source)
        self._captured, self._has_begun, self._last = found.step, True, None
        self._folders = list(items["folders"])
        self._client_keys = items["client_keys"]
        return dict(items["client_state"])

    def warn_of_client_state(self, found, folder_name):
        """For a step from before the first save_checkpoint, where no folder says what one is given:
        a program that wants a client state would begin its data anew, or miss a key."""
        is_known = folder_name is not None or found.items["client_keys"] is not None
        if is_known or found.items["client_state"] or self._client_state is not None:
            return
        logger.warning(
            "libckpt: step %d comes without a client_state, since it was captured before the first "
            "save_checkpoint, and attach was given none: if the program reads from it how far it "
            "had come, give that to libckpt.deepspeed.attach(client_state=...), too", found.step,
        )  # fmt: skip

    def start_fresh(self):
        """Training goes on from elsewhere, whatever memory has."""
        self._has_begun, self._last = True, None
        self._captured = self._engine.global_steps
        try:
            self.session.start_fresh()
        except errors.CheckpointError as error:
            logger.error("libckpt: %s; steps are not captured in memory", error)


def _refusal(found, folder, client_keys):
    """Why a step that fits is not what load_checkpoint of the folder should take; None: it is."""
    # A step from before the first save does not know what saves are given; the folder does.
    known, keys = found.items["folders"], found.items["client_keys"] or client_keys
    if folder is not None and known and os.path.realpath(folder) not in known:
        return f"it is of a run that loads from {known[0]}, and not from {folder}"
    if folder is not None and keys and not found.items["client_state"]:
        return (
            f"save_checkpoint was given a client_state ({', '.join(keys[:5])}), and the "
            "libckpt.deepspeed.attach of the run that captured it none: give it there, too"
        )
    return None
