"""CheckpointIO: Lightning's files, captured where Lightning would write them."""

import contextlib
import functools
import logging
import os
import pathlib

import torch.distributed as dist

from libckpt import errors
from libckpt.core import _resuming, _settings
from libckpt.core._resuming import NEWEST  # noqa: F401
from libckpt.core.files import _disk, _full, _leftovers
from libckpt.lightning import _files, _unvalidated
from libckpt.lightning._framework import TorchCheckpointIO

logger = logging.getLogger("libckpt")

OTHERS_DEADLINE = 60.0  # For a file that another rank publishes.


class CheckpointIO(TorchCheckpointIO):
    """For `Trainer(plugins=[...])`. Files are Lightning's own; stock Lightning loads them.

    A save returns once the tensors are copied in memory; the file appears whole, or not at all. It
    is removed only after all that was saved before its removal is there.
    """

    def __init__(self):
        super().__init__()
        self.memory = None  # The callback of the same Trainer, which NEWEST asks.
        self.is_between_fits = False  # As that callback says: then nothing is worth a file's delay.
        self._is_disabled = _settings.is_true(_settings.configured("disable"))
        self._by_directory = {}
        # A file is lost with this process until its note is written. One that is newer than memory
        # would be resumed from, and has no random generators.
        self.holds_notes = False

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        local = self._local(path)
        if local is None or storage_options is not None or not _disk.can_place(local):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            local.parent.mkdir(parents=True, exist_ok=True)
            if self.memory is not None:
                step = self.memory.step_before_validation()
                _unvalidated.note(local.parent, checkpoint.get("global_step"), step)
            self._files(local).save(checkpoint, local)
            if self.is_between_fits:
                _files.settle()
        except (errors.CheckpointError, OSError) as error:
            logger.error("libckpt: save %s: %s; stock Lightning saves instead", path, error)
            _files.settle()
            self._save_by_lightning(checkpoint, local)

    def _save_by_lightning(self, checkpoint, path):
        """A disk that is full or read-only does not end a training whose steps are in memory."""
        try:
            super().save_checkpoint(checkpoint, path)
        except OSError as error:
            is_in_memory = self.memory is not None and self.memory.session is not None
            if error.errno not in _full.UNWRITABLE or not is_in_memory:
                raise
            with contextlib.suppress(OSError):
                path.unlink()  # Lightning leaves a part of it.
            logger.error("libckpt: %s does not come: %s; training goes on, with its steps in "
                         "memory; make room, or lower save_top_k", path, error)  # fmt: skip

    def load_checkpoint(self, path, map_location=lambda storage, _: storage, weights_only=None):
        is_newest, source = _resuming.source_in(path)
        if is_newest and self.memory is None:
            raise errors.InvalidArgument(
                f'ckpt_path="{path}": the Trainer has no libckpt.lightning.Callback among its '
                "callbacks, which finds the newest of memory and files: add one"
            )
        if is_newest:
            return self.memory.load_newest(self, source, map_location, weights_only)
        local = self._local(path)
        if local is not None:
            if self._files(local).is_coming(local):
                _files.settle()
            if dist.is_available() and dist.is_initialized() and dist.get_rank() > 0:
                _files.await_file(local, OTHERS_DEADLINE)
        return super().load_checkpoint(path, map_location, weights_only)

    def remove_checkpoint(self, path):
        local = self._local(path)
        stock = super().remove_checkpoint
        if local is None or not self._files(local).remove_later(local, stock):
            stock(path)

    def teardown(self):
        """The end of a fit: its files are read next."""
        _files.settle()

    def finish(self, directory):
        """On the rank that writes: publishes a killed run's captures for it, before anything is
        loaded from there. Only for a fit: beside an evaluation that run may be training."""
        if self.is_between_fits:
            return
        files = self._files(pathlib.Path(os.path.realpath(directory), "any"))
        if not self._is_disabled and files.work.directory.is_dir():
            _leftovers.attempt(directory, files.finish)

    def has_held_notes(self):
        return any(files.held for files in self._by_directory.values())

    def release_notes(self):
        for files in self._by_directory.values():
            files.release_notes()

    def _local(self, path):
        """Where the file lies; none: elsewhere, or libckpt is disabled."""
        path = os.fspath(path)
        if self._is_disabled or "://" in path:
            return None
        parent, name = os.path.split(os.path.abspath(path))
        return pathlib.Path(os.path.realpath(parent), name)

    def _files(self, path):
        files = self._by_directory.setdefault(path.parent, _files.Files(path.parent))
        files.holds_notes = self.holds_notes
        return files


def of_trainer(trainer):
    """Ours, also behind a plugin that wraps it."""
    io = trainer.strategy.checkpoint_io
    while io is not None and not isinstance(io, CheckpointIO):
        io = getattr(io, "checkpoint_io", None)
    if io is None:
        _refuse_newest(trainer.strategy.checkpoint_io)
        logger.warning(
            "libckpt: the Trainer has no libckpt.lightning.CheckpointIO among its plugins: its "
            'files are written by Lightning, and ckpt_path="%s" cannot be loaded', NEWEST,
        )  # fmt: skip
    return io


def _refuse_newest(io):
    """Lightning would look for a file system of that name."""
    stock = io.load_checkpoint
    if hasattr(stock, "refuses_newest"):
        return

    @functools.wraps(stock)
    def load_checkpoint(path, *arguments, **options):
        if _resuming.source_in(path)[0]:
            raise errors.InvalidArgument(
                f'ckpt_path="{path}": the Trainer has no libckpt.lightning.CheckpointIO among its '
                "plugins, which loads it: add one"
            )
        return stock(path, *arguments, **options)

    load_checkpoint.refuses_newest = True
    io.load_checkpoint = load_checkpoint


class Nothing(dict):
    """A checkpoint that Lightning takes for none."""

    def __bool__(self):
        return False
