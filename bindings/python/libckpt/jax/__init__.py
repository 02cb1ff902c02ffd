"""libckpt for JAX: trees of arrays, on any mesh, in memory that outlives the process.

    checkpointer = libckpt.jax.Checkpointer("my-run", dir="checkpoints")
    start, state = checkpointer.restore_or(state)
    for step in range(start + 1, steps + 1):
        state = train_step(state, batch)
        checkpointer.save_checkpoint_if_needed(step, state)

The next step may donate the state: a save keeps a view of each shard until it is copied, behind the
training. A restore makes new arrays, on the shardings that it is given, whatever mesh and number of
processes saved them.
"""

import functools
import logging

import jax

from libckpt import errors
from libckpt._init import with_keywords
from libckpt.adapters.jax import _coordinator
from libckpt.core import _resuming, _settings, _unopened
from libckpt.jax import _capture, _load, _restore
from libckpt.jax._restore import Restored

__all__ = ["Checkpointer", "Restored", "load"]

logger = logging.getLogger("libckpt")


class Checkpointer:
    """One for a job; every process opens it, after jax.distributed.initialize() if it calls that.

    All processes make the same calls in the same order. `job` is by default LIBCKPT_JOB; `options`
    are those of libckpt.init; rank and world_size are those of JAX's processes. Where no daemon can
    be had, training goes on without captures, which one line logs; with raise_on_error it raises.
    """

    @with_keywords
    def __init__(self, job=None, dir=None, **options):
        job = _settings.job(job)
        rank, world_size = jax.process_index(), jax.process_count()
        if world_size > 1 and _coordinator.group_of(world_size) is None:
            raise errors.InvalidArgument(
                f"job {job}: JAX has {world_size} processes, and no coordinator through which they "
                "can agree on a step: call jax.distributed.initialize() first"
            )
        options.update(rank=rank, world_size=world_size)
        may_raise = _settings.flag("raise_on_error", options.get("raise_on_error") or False)
        self.session, self._unopened = _unopened.opened(job, dir, may_raise=may_raise, **options)
        self._capture = _capture.Capture()
        self._running = None  # The Ticket of a save whose views may still be held.

    def prepare(self, tree):
        """Makes room for the tree now, so that the first save need not wait. All processes call it,
        and before that restore, where there may be something."""
        items, arrays = self._capture.of(tree)
        self.session.prepare(items, arrays=arrays)

    def save_checkpoint_if_needed(self, step, tree, *, metrics=None):
        """Captures the tree if the step is due by `save_mem_interval`. Returns a Ticket. Failures
        are logged and counted, and never raise into training, unless raise_on_error was given.

        metrics: numbers by name, as the loss, or a function that returns them, which is called if
        the step is due. `keep_best` goes by those of process 0."""
        self._let_go()
        items, arrays = self._of(tree)
        ticket = self.session.save_checkpoint_if_needed(
            step, items, arrays=arrays, metrics=metrics
        )
        self._running = ticket if ticket else self._running
        return ticket

    def save(self, step, tree, wait=0, *, metrics=None):
        """The same, due or not. Without a free Slot in `wait` seconds the step is skipped: wait in
        the last step of a training, which no later one replaces, in all processes alike."""
        self._let_go()
        items, arrays = self._of(tree)
        ticket = self.session.save(step, items, wait, arrays=arrays, metrics=metrics)
        self._running = ticket if ticket else self._running
        return ticket

    def _let_go(self):
        """Frees the memory of a save that has ended: else it is held until the next one is due."""
        if self._running is not None and self._running.captured.done():
            self.session.finish_capture()
            self._running = None

    def _of(self, tree):
        """The functions that a save calls, one after the other, if its step is due."""
        taken = functools.cache(lambda: self._capture.of(tree))
        return (lambda: taken()[0]), (lambda: taken()[1])

    def restore(self, like, step=None, *, strict=True, source=None):
        """The newest step that all processes can have, or `step`, as a new tree in Restored.tree.

        like: a tree of what is wanted, of arrays or of jax.ShapeDtypeStruct with shardings; a part
        of what was saved will do. An array of numpy there becomes one.
        strict: all of it must be in the checkpoint, with its shape and type; else arrays that are
        not stay as they are in `like`.
        source: the place to take it from alone, "memory" or "storage"; None: the nearest ones.
        Raises NotFound when there is nothing: train from the beginning. After any other failure
        saves are refused until a restore succeeds, or `session.start_fresh()` is called. Where no
        daemon can be had, it raises Unavailable if `dir` has steps of the job, else NotFound.
        """
        self._check_readable(step)
        restored = _restore.restore(self.session, like, step, strict, source)
        if self.session.rank == 0:
            _resuming.log_restored(restored)
        return restored

    def restore_or(self, like, default=0, *, strict=True, source=None):
        """(step, tree) of the newest step, or (default, like) without one."""
        try:
            restored = self.restore(like, strict=strict, source=source)
        except errors.NotFound as error:
            if self._unopened is not None and self.session.rank == 0:
                logger.warning("libckpt: training begins at step %s: %s", default, error)
            return default, like
        return restored.step, restored.tree

    def _check_readable(self, step=None):
        """Raises when the session could not be opened. All processes call it."""
        if self._unopened is not None:
            raise self._unopened.refusal(step)

    @property
    def latest(self):
        """The newest committed step of this run, or None."""
        return self.session.latest

    def wait_until_finished(self, deadline=60.0):
        """Returns when the newest committed step is on storage; only with a directory."""
        self.session.flush(deadline)

    def close(self, deadline=60.0):
        """Flushes the newest committed step, and frees the job's memory. Idempotent."""
        self.session.close(deadline)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.session.__exit__(kind, error, trace)


def load(path, like, *, strict=True):
    """The tree of a checkpoint that lies at the path, of whatever job, mesh and number of
    processes. `like` and strict are those of Checkpointer.restore; arrays of numpy that the saved
    tree had come by that only."""
    return _load.load(path, like, strict)
