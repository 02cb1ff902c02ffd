"""LocalCheckpointManager: in the seat of NVRx's manager, for `--non-persistent-ckpt-type local`.

Megatron hands it a state dict whose tensors it may take out, and takes such a one back. The tensors
are captured in memory that outlives the process, and copied to peers in the background: no
collective, no file. The rest is pickled, as NVRx's own manager does with all of it.
"""

import importlib
import logging
import os
import pathlib
import pickle

import torch

from libckpt import errors
from libckpt._init import check, with_keywords
from libckpt.core import _signals, _unopened
from libckpt.core._ranks import counted
from libckpt.core.files import _publish_queue
from libckpt.ticket import outcome_text

logger = logging.getLogger("libckpt")

ROOM = 64 << 10  # The pickle takes a multiple of it, so that its place need not change each time.
ASYNC_REQUESTS = ("megatron.core.dist_checkpointing.strategies.async_utils",
                  "nvidia_resiliency_ext.checkpointing.async_ckpt.core")  # fmt: skip


class LocalCheckpointManager:
    """`options` are those of `libckpt.init`. Copies on peers are made as its option `replicas`
    says, whatever `repl_strategy` is."""

    @with_keywords
    def __init__(self, root_local_ckpt_dir, session_id="", repl_strategy=None, **options):
        self.session_id, self.repl_strategy = session_id, repl_strategy
        self.latest_iteration = -1
        check(**options)
        self._root = os.path.realpath(root_local_ckpt_dir)
        self._options = options
        self._session, self._unopened, self._restored = None, None, None

    @property
    def session(self):
        """Opened when it is first needed: the process groups exist by then. Where no daemon can be
        had, it captures nothing, and Megatron goes on with its global checkpoints."""
        if self._session is None:
            directory = os.path.join(self._root, self.session_id)
            job = _publish_queue.job_of("megatron-local", os.path.basename(directory), directory)
            options = {**self._options, "allow_pickle": True}
            self._session, self._unopened = _unopened.opened(job, **options)
        return self._session

    @property
    def local_ckpt_dir(self):
        """Where NVRx's would have its files; libckpt has none."""
        return pathlib.Path(self._root) / self.session_id / str(self.session.rank)

    def save(self, state_dict, iteration, is_async=False):
        """Captures it; no rank waits for another. Returns an AsyncRequest with nothing to do, or
        None."""
        self.latest_iteration, self._restored = -1, None
        problem = self._capture(state_dict, iteration)

        def finalize():
            if problem:
                logger.error("libckpt: local checkpoint of iteration %d: %s", iteration, problem)

        if is_async:
            return _async_request()(None, (), [finalize])
        finalize()
        return None

    def _capture(self, state_dict, iteration):
        """The failure; None: there was none."""
        try:
            ticket = self.session.save(iteration, lambda: _items_of(state_dict))
            if self._unopened is not None or ticket.outcome == "disabled":
                return None  # The opening has logged it, or nothing is wanted.
            return None if ticket else f"the save {outcome_text(ticket.outcome)}"
        except Exception as error:  # Training goes on, whatever it is.
            _signals.raise_of_handler(error)
            return error

    def find_latest(self):
        """The newest iteration that all ranks can have; -1: none. All ranks call it."""
        if self.latest_iteration == -1:
            self._restored = self._restore()
            self.latest_iteration = -1 if self._restored is None else self._restored.step
        return self.latest_iteration

    def _restore(self):
        restored, failure = None, None
        try:
            restored = self.session.restore()
            if restored.world_size != self.session.world_size:
                failure = errors.Unsupported(
                    f"step {restored.step} was saved by {counted(restored.world_size)}, and local "
                    "checkpoints are for the same number: use save_checkpoint_if_needed"
                )
        except errors.NotFound:
            pass
        except Exception as error:  # Megatron's global checkpoints may be good.
            failure = error
        try:
            self.session.agree("local checkpoint", failure)
            return restored
        except Exception as error:
            _signals.raise_of_handler(error)
            logger.error("libckpt: local checkpoint: %s; Megatron loads without it", error)
            self.session.start_fresh()
            return None

    def load(self):
        """(state dict, (iteration, rank, session_id)) of what find_latest() found."""
        if self._restored is None:
            raise errors.InvalidArgument(
                "LocalCheckpointManager.load: call find_latest() first; it found nothing, or a "
                "save came after it"
            )
        items, self._restored = self._restored.items, None
        state_dict = pickle.loads(items["hollow"].numpy().tobytes())
        state_dict.insert_tensors(items["tensors"])
        state_dict.restore_tensor_device(non_blocking=False)
        return state_dict, (self.latest_iteration, self.session.rank, self.session_id)


def _items_of(state_dict):
    tensors = state_dict.pop_tensors()
    try:
        hollow = pickle.dumps(state_dict)
    finally:
        state_dict.insert_tensors(tensors)
    return {"hollow": _as_tensor(hollow), "tensors": [each.detach() for each in tensors]}


def _as_tensor(content):
    padded = bytearray(-(-len(content) // ROOM) * ROOM)
    padded[: len(content)] = content
    return torch.frombuffer(padded, dtype=torch.uint8)


def _async_request():
    """The class that Megatron's queue of asynchronous saves takes."""
    for name in ASYNC_REQUESTS:
        try:
            return importlib.import_module(name).AsyncRequest
        except ImportError:
            continue
    raise errors.Unsupported("--async-save: neither Megatron nor NVRx has an AsyncRequest here")
