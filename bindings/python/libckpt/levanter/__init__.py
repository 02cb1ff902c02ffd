"""libckpt for Levanter: its Checkpointer, with every step in memory besides.

    checkpointer = libckpt.levanter.Checkpointer(
        "checkpoints/my-run", datetime.timedelta(minutes=15),
        [CheckpointInterval(every=1000, until=10000), CheckpointInterval(every=5000)],
    )
    state = checkpointer.load_or(state)
    ...
    checkpointer.on_step(tree=state, step=step)

The policies, the names of the folders and their metadata are Levanter's. The arrays in them are
libckpt's own safetensors files: `load_checkpoint` of this module reads them, that of Levanter does
not.
"""

import logging
import os

import jax

from libckpt import errors
from libckpt._init import with_keywords
from libckpt.core import _resuming, _settings, _signals, _turn
from libckpt.core.files import _publish_queue
from libckpt.jax import Checkpointer as Memory
from libckpt.jax import _load, _restore
from libckpt.levanter import _folders, _saver
from libckpt.levanter._policy import CheckpointInterval, Policy

__all__ = [
    "CheckpointInterval",
    "Checkpointer",
    "discover_latest_checkpoint",
    "initialize_from",
    "is_checkpoint_path",
    "load_checkpoint",
]

logger = logging.getLogger("libckpt")


class Checkpointer:
    """All processes open it, and call it alike. The time is that of process 0.

    job: the name of the run; by default LIBCKPT_JOB, or made from the base path. `dir`, for steps
    on storage besides the folders, and `options` are those of libckpt.init. debug: Levanter's
    configuration of diagnostics that is not enabled, or libckpt's own option, True or False.
    """

    @with_keywords
    def __init__(
        self, base_path, save_interval=None, step_policies=(), *, temporary_base_path=None,
        keep_params=True, dt_now_injection=None, delete_old_temp_checkpoints=True,
        keep_last_temporary_checkpoints=1, debug=None, job=None, dir=None, **options,
    ):  # fmt: skip
        if keep_params is not True:
            raise errors.Unsupported(
                f"keep_params={keep_params!r}: all of the tree is saved: leave that out, and give "
                "on_step a tree without what you do not want"
            )
        options |= _own_debug(debug)
        if keep_last_temporary_checkpoints < 0:
            raise ValueError("keep_last_temporary_checkpoints: at least 0 is wanted")
        self._policy = Policy(save_interval, step_policies, dt_now_injection)
        self._base = _folders.local(base_path)
        job = _settings.job(job) or _publish_queue.job_of(
            "levanter-memory", os.path.basename(self._base), self._base
        )
        self._is_disabled = _settings.is_disabled(options)
        self._memory = Memory(job, dir, **options)
        self._ranks = self._memory.session.ranks
        self._temporary_base = _folders.local(temporary_base_path or self._base)
        self._saver = self._opened_saver(
            self._base, self._temporary_base, keep_last_temporary_checkpoints,
            delete_old_temp_checkpoints, jax.process_index(), jax.process_count(),
        )  # fmt: skip
        self._step = 0  # Memory was given this one last.
        self._has_failed = False

    def _opened_saver(self, *arguments):
        try:
            return _saver.Saver(*arguments)
        except errors.InvalidArgument:
            raise
        except errors.CheckpointError as error:  # On all processes alike.
            logger.error("libckpt: no folders are saved below %s: %s; training goes on",
                         self._base, error)  # fmt: skip
            return _saver.NoSaver()

    def on_step(self, *, tree, step, force=False, metrics=None):
        """Call it after each step. A failure is logged once, and never raised into training.

        metrics: numbers by name, as the loss, or a function that returns them. With `dir`,
        `keep_best` goes by those of process 0; the folders below the base path stay by Levanter's
        policies."""
        step = int(step)
        try:
            self._saver.settle()
            if step > 0 and step != self._step:  # The last one comes again, as a forced one.
                self._step = step
                self._memory.save_checkpoint_if_needed(step, tree, metrics=metrics)
            kind = self._ranks.decide(
                "save", self._policy.decide(step, force), lambda kinds: kinds[0]
            )
            if kind is not None and self._saver.is_open:
                self._saver.save(step, tree, self._policy.saved(step), kind == "temporary")
        except Exception as error:
            _signals.raise_of_handler(error)
            log = logger.debug if self._has_failed else logger.error
            log("libckpt: save step %d to %s: %s; training goes on", step, self._base, error)
            self._has_failed = True

    def load_or(self, state, *, strict=True, source=None):
        """The newest of memory, peers, storage and the folders; `state` where there is none.
        `source`: from "memory" alone, or from "storage": the folders, and `dir`."""
        _turn.check_source(source)
        source = None if self._is_disabled else source
        newest = self._ranks.decide("folder", self._newest(), lambda said: said[0])
        beside, number = newest or (None, None)
        session, unopened = self._memory.session, self._memory._unopened
        restored, failure, folder = _resuming.from_source(
            source, None if unopened else session,
            lambda source: _restore.restore(session, state, None, strict, source), beside, unopened,
        )  # fmt: skip
        is_memory_newest = _resuming.is_memory_newest(
            restored, failure, folder, number, name=beside
        )
        self._warn_of_foreign(restored.step if is_memory_newest else number)
        if is_memory_newest:
            return restored.tree
        if folder is None:
            return state
        tree = load_checkpoint(state, folder, discover_latest=False, strict=strict)
        self._memory.session.start_fresh()
        return tree

    def _warn_of_foreign(self, step):
        found = _folders.foreign({self._base, self._temporary_base})
        if found is not None and (step is None or found[0] > step) and jax.process_index() == 0:
            logger.warning(
                "libckpt: %s is a checkpoint of Levanter itself, which is not read here: to go on "
                "from it, load it by levanter.checkpoint.load_checkpoint, and give load_or that",
                found[1],
            )  # fmt: skip

    def _newest(self):
        """(path, step) of the newest folder, or None."""
        paths = {self._base, self._temporary_base}
        found = [(path, _folders.metadata_of(path)) for path in map(_folders.discover, paths)
                 if path is not None]  # fmt: skip
        newest = max(found, key=lambda each: (each[1]["timestamp"], each[1]["step"]), default=None)
        return None if newest is None else [newest[0], newest[1]["step"]]

    def wait_until_finished(self):
        """Returns when all that was saved is in its folder."""
        self._saver.settle(wait=True)

    def close(self):
        self._saver.close()
        self._memory.close()

    def abandon(self):
        """Lets go without closing, as a death would: memory keeps what it holds."""
        self._memory.session.abandon()
        self._saver.close()


def is_checkpoint_path(path):
    """Whether a complete checkpoint lies there."""
    return _folders.metadata_of(path) is not None


def discover_latest_checkpoint(path, max_step=None):
    """The newest complete checkpoint at the path or below it; None: there is none."""
    return _folders.discover(path, max_step)


def load_checkpoint(
    state, path, discover_latest=True, *, subpath=None, axis_mapping=None, mesh=None,
    allow_partial=False, strict=True,
):  # fmt: skip
    """The tree of the checkpoint at the path, on the shardings of `state`. The path may be a parent
    folder: the newest complete one below it is taken. `subpath`: the part of the saved tree that
    `state` is, as "model". allow_partial: leaves that the checkpoint lacks stay as they are. With
    strict=False those of another shape or type do, too. Raises FileNotFoundError without a
    checkpoint."""
    for name, given in {"axis_mapping": axis_mapping, "mesh": mesh}.items():
        if given is not None:
            raise errors.Unsupported(
                f"load {path}: {name} is not taken: give `state` as arrays, or as "
                "jax.ShapeDtypeStruct, with the shardings that are wanted"
            )
    path = _folders.local(path)
    found = _folders.discover(path) if discover_latest else path
    if found is None or not is_checkpoint_path(found):
        raise FileNotFoundError(f"load {path}: no complete checkpoint lies there")
    prefix = f"{subpath}." if subpath else ""
    return _load.load(found, state, strict, prefix, may_lack=allow_partial)


def _own_debug(given):
    """libckpt's option, from what may be Levanter's CheckpointDebugConfig."""
    if given is None:
        return {}
    if not hasattr(given, "enabled"):
        return {"debug": given}
    if given.enabled:
        raise errors.Unsupported(
            "debug: Levanter's diagnostics watch its own writer, which is not used here: leave "
            "them disabled; debug=True is libckpt's own option"
        )
    return {}


def initialize_from(model, path, *, subpath="model"):
    """Weights only: the part `subpath` of the newest checkpoint at the path, or below it."""
    return load_checkpoint(model, path, subpath=subpath)
