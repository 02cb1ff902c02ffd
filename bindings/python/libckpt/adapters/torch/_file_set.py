"""File set: one rank's files for a set, captured or written, and then published; see
_file_sets.py.
"""

import contextlib
import logging
import shutil

from libckpt import errors
from libckpt.adapters.torch._members import TorchMember
from libckpt.adapters.torch._safetensors import METADATA, is_storable
from libckpt.core.files import _disk, _publish_queue, _storage, _work

logger = logging.getLogger("libckpt")

OTHERS_DEADLINE = 10.0  # For sets before one that is there already.
CAPTURED_DEADLINE = 1.0  # It takes a millisecond.
MARK = "set"  # The item that says which set a step is of.
MISSED = ".missed"  # The member of a part that has none of its files.


class FileSet:
    """A set that is being collected, by this rank."""

    def __init__(self, sets, name, step, may_be_aside):
        self.name, self.step = name, step
        self.objects = {}  # By file, what stock torch.save would write there.
        self._tensors = (None, {})  # The name of a file, and the tensors in it.
        self._sets = sets
        self._marks = sets.work.folder(str(step))
        own = self._marks / f"rank-{sets.rank}"
        shutil.rmtree(own, ignore_errors=True)
        self._folder, self._problem = _work.make_or_aside(own)
        if self._problem is not None and not may_be_aside:
            self._remove_folder()
            raise errors.StorageError(self._problem)

    @property
    def folder(self):
        """Where this rank writes files by itself, before the commit."""
        return self._folder

    def path(self, file):
        """Where this rank writes one file by itself. Makes the file's folder."""
        path = self._folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def take_tensors(self, file, tensors):
        """Makes these the tensors of the one safetensors file that a set may have, on rank 0.
        Returns whether it can."""
        can_be = self._sets.rank == 0 and self._tensors[0] is None and MARK not in tensors
        if can_be and is_storable(tensors):
            self._tensors = (file, dict(tensors))
            return True
        return False

    def commit(self, trackers=None, then=None):
        """Captures the objects, and returns; the set appears later. `trackers`: texts by name of
        the file in the directory. `then()` is called on rank 0 after that. Where the objects cannot
        be captured they are written here and now, as stock torch does it. Raises what that raises.
        """
        if self._problem is not None:
            self.give_up()
            logger.error("libckpt: %s does not come: %s; training goes on", self, self._problem)
            return
        publish = _Publish(self._sets, self.step, self.name, trackers or {}, then)
        try:
            with _publish_queue.turn():
                self._commit(publish)
        except BaseException:
            self.give_up()
            raise

    def give_up(self):
        """Instead of a commit: the set does not come, and no rank waits for this one's part."""
        with contextlib.suppress(OSError):
            self._mark("missed")
        self._remove_folder()
        if self._sets.world_size == 1:
            with contextlib.suppress(OSError):
                self._sets.work.drop(str(self.step))
            return
        with contextlib.suppress(errors.CheckpointError):
            missed = TorchMember("missed", as_it_is=True)  # The mark may not be there.
            self._sets._queue.capture_as(self.step, {MARK: self.name, MISSED: missed})

    def _remove_folder(self):
        is_aside = self._problem is not None
        shutil.rmtree(self._folder.parent if is_aside else self._folder, ignore_errors=True)

    def _commit(self, publish):
        for file in list(self.objects)[_publish_queue.MEMBERS_MAX :]:
            self._write(file)
        members = {file: TorchMember(part, as_it_is=True) for file, part in self.objects.items()}
        publish.facts["tensors"], tensors = self._tensors
        try:
            self._capture({**tensors, **members})
        except errors.CheckpointError as error:
            logger.error("libckpt: %s: %s; stock torch writes its files", self, error)
            self._write_all(publish)
            self._hand_over_written(publish)
        self._mark("captured")
        if self._sets.rank == 0:
            self._sets.work.note(str(self.step), publish.facts)
        if publish.is_captured:
            self._sets._queue.post(self.step, publish)
        elif self._sets.world_size == 1:
            _publish_queue.settle_to(self._sets._queue, 0, OTHERS_DEADLINE)
            publish.now()

    def _hand_over_written(self, publish):
        try:
            self._capture({})
        except errors.CheckpointError as error:
            publish.is_captured = False
            if self._sets.world_size > 1:
                logger.error("libckpt: %s does not come: %s", self, error)

    def _capture(self, members):
        _disk.sync_tree(self._folder)
        _disk.sync(self._folder.parent)
        self._sets._queue.capture_as(self.step, {MARK: self.name, **members})
        # All is copied. A death before the daemon has it as captured would take it along.
        with contextlib.suppress(errors.CheckpointError):  # It comes a little later, then.
            self._sets._queue.session.wait(self.step, "captured", CAPTURED_DEADLINE)

    def _mark(self, what):
        """For rank 0, which publishes the set."""
        (self._marks / f"{what}-{self._sets.rank}").touch()

    def _write_all(self, publish):
        from safetensors.torch import save_file

        for file in list(self.objects):
            self._write(file)
        file, tensors = self._tensors
        if file is not None:
            save_file(tensors, self.path(file), metadata=METADATA)
            publish.facts["tensors"] = None

    def _write(self, file):
        import torch

        torch.save(self.objects.pop(file), self.path(file))

    def __str__(self):
        return str(self._sets.directory / self.name)


class _Publish:
    """Publishes one set; called when its step is on storage."""

    def __init__(self, sets, step, name, trackers, then):
        self._sets, self._step, self._then = sets, step, then
        self.is_captured = True
        self.name = name
        self.facts = {"name": name, "trackers": trackers, "ranks": sets.world_size}
        self.paths = [sets.directory / name]

    def __call__(self, path, files):
        if self._sets.rank != 0:
            return
        folder = self._sets.work.folder(str(self._step))
        is_overtaken = not folder.with_suffix(".json").exists()  # By one that is published.
        if path is None or is_overtaken or is_missed(folder, path):
            self.given_up()
        else:
            self.now(path)

    def now(self, path=None):
        self._sets.publish(self._step, self.facts, path)
        if self._then is not None:
            self._then()

    def given_up(self):
        """A newer one overtook it, or a rank could not capture its part."""
        if self._sets.rank == 0:
            self._sets.work.drop(str(self._step))
            logger.warning(
                "libckpt: %s does not come: not all ranks captured it, or a newer save overtook it "
                "on its way to storage, which is slower than saves come",
                self.paths[0],
            )


def is_missed(folder, path):
    """Whether a rank has none of its files in the set: its disk may have refused even the mark."""
    is_marked = any(folder.glob("missed-*"))
    return is_marked or any(MISSED in files for files in _storage.files_of(path))
