"""torch_checkpointing: a Storage for the seat that its CheckpointManager has for one.

    CheckpointManager.Config(
        save=SyncCheckpointSaverConfig(),
        storage_config=libckpt.torch_checkpointing.StorageConfig("checkpoints"),
    )

Every rank's objects are captured in memory that outlives the process, and `save` returns. The
folder is torch_checkpointing's own: it appears later, with the files of all ranks, or never.
"""

import contextlib
import errno
import io
import logging
import os
import pathlib
import threading
import time

import torch.distributed as dist
from torch_checkpointing.metadata_serialization import METADATA_FILE_NAME
from torch_checkpointing.storage.filesystem import (
    LocalFileSystemStorage,
    LocalFileSystemStorageConfig,
)

from libckpt import errors
from libckpt._init import check
from libckpt.adapters.torch import _file_sets
from libckpt.core import _settings, _unopened
from libckpt.core.files import _publish_queue
from libckpt.core.files._disk import files_of

__all__ = ["Storage", "StorageConfig"]

logger = logging.getLogger("libckpt")

ADVICE = "remove older folders"  # Where the disk is full.
OTHERS_DEADLINE = 60.0  # For a folder that rank 0 publishes.

_opened = {}  # By folder: a manager makes one Storage that writes and one that reads.
_refused = {}  # By folder: why it could not be opened, as the log has it.


class StorageConfig(LocalFileSystemStorageConfig):
    """directory: the folder that checkpoints lie in. Others are written as stock ones are.

    temp_dir_prefix: as in CheckpointWriterConfig. `options` are those of `libckpt.init` that say
    where the daemon is, and how many copies of a capture are made.
    """

    def __init__(self, directory, temp_dir_prefix="tmp_", use_direct_io=True, **options):
        super().__init__(use_direct_io)
        self.directory, self.temp_dir_prefix = directory, temp_dir_prefix
        self.options = _file_sets.options_of_place(options)
        unknown = sorted(options.keys() - self.options.keys())
        if unknown:
            raise errors.InvalidArgument(f"StorageConfig has no option {', '.join(unknown)}")
        check(**self.options)
        self._process = os.getpid()

    def create_storage(self):
        """All ranks call it. It publishes what a killed run had captured."""
        if _settings.is_true(_settings.configured("disable")):
            return LocalFileSystemStorage(self)
        if self._process != os.getpid():
            logger.warning(
                "libckpt: an asynchronous saver writes in a process of its own, which has no ranks "
                "to talk to: it writes to disk as ever; with SyncCheckpointSaverConfig saves are "
                "captured, and return when they are"
            )
            return LocalFileSystemStorage(self)
        try:
            return Storage(self)
        except errors.CheckpointError as error:
            if _unopened.is_wrong_option(error):
                raise
            if _refused.get(self.directory) != str(error):  # A manager makes two of them.
                _refused[self.directory] = str(error)
                logger.error("libckpt: %s; folders are written to disk as ever", error)
            return LocalFileSystemStorage(self)


class Storage(LocalFileSystemStorage):
    """Captures files of DIRECTORY/NAME; the local file system has all others."""

    def __init__(self, config):
        super().__init__(config)
        self._root = pathlib.Path(os.path.realpath(config.directory))
        self._prefix = config.temp_dir_prefix
        sets = _opened.get(self._root)
        if sets is None or not sets.is_open():
            sets = _opened[self._root] = _Sets(self._root, config.options)
        self._sets = sets
        self._metadata = None

    # --- writing: all of it goes to a folder with a prefix, which a set takes the place of

    def mkdir(self, path, recursive=True):
        set_, file = self._part_of(path, is_begin=True)
        if set_ is None:
            super().mkdir(path, recursive)
        elif file:
            (set_.folder / file).mkdir(parents=True, exist_ok=True)

    def get_write_stream(self, path, data):
        set_, file = self._part_of(path)
        if set_ is None:
            return super().get_write_stream(path, data)
        set_.objects[file] = data  # Stock torch.save is about to write it to the stream.
        return _Nowhere()

    def stream_write(self, path):
        """Files of a set are small: what is large comes as an object."""
        set_, file = self._part_of(path)
        return super().stream_write(path) if set_ is None else open(set_.path(file), "wb")

    def write(self, path, data):
        set_, file = self._part_of(path)
        if set_ is None:
            super().write(path, data)
        else:
            set_.path(file).write_bytes(data)
            if file == METADATA_FILE_NAME:
                self._metadata = bytes(data)

    def exists(self, path):
        """The writer asks for its folder, on all ranks, when all of them have written theirs."""
        name = self._name_of(path)
        if name in self._sets.begun:
            if self._sets.sets.rank != 0:  # Rank 0 renames the folder next.
                self._sets.commit(name)
            return True
        self._sets.await_folder(self._below(path), path)
        return super().exists(path)

    def rename(self, src_path, dst_path, is_directory=False, background_cleanup=False):
        """A set needs none: its folder appears when all ranks' parts are on storage."""
        name = self._name_of(src_path)
        if name in self._sets.begun and name == self._below(dst_path):
            # A manager computes it once, and refuses objects that it does not hold for; a
            # synchronous saver of 0.1.1 then writes it to the first checkpoint only.
            path = self._sets.begun[name].path(METADATA_FILE_NAME)
            if self._metadata is not None and not path.exists():
                path.write_bytes(self._metadata)
            self._sets.commit(name)
        else:
            super().rename(src_path, dst_path, is_directory, background_cleanup)

    def rmdir(self, path):
        name = self._below(path)
        self._sets.await_folder(name, path)
        if name is None or not self._sets.sets.remove(name):
            super().rmdir(path)

    def _below(self, path):
        """The path relative to the directory; none: it is elsewhere."""
        path = pathlib.Path(os.path.realpath(path))
        return str(path.relative_to(self._root)) if self._root in path.parents else None

    def _name_of(self, path):
        """The set that a folder with the prefix is written for; none: it is no such folder."""
        parent, _, last = (self._below(path) or "").rpartition("/")
        if not last.startswith(self._prefix):
            return None
        return str(pathlib.PurePath(parent, last.removeprefix(self._prefix)))

    def _part_of(self, path, is_begin=False):
        """(the set that is being written, the file in it), or twice None."""
        path = pathlib.Path(path)
        for folder in (path, *path.parents):
            name = self._name_of(folder)
            if name is not None:
                file = "" if folder == path else os.path.relpath(path, folder)
                return self._sets.begin(name, is_begin), file
        return None, None


class _Sets:
    """The file sets of one directory, of this process."""

    def __init__(self, root, options):
        several = dist.is_available() and dist.is_initialized()
        ranks = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
        self.sets = _file_sets.FileSets("torch_checkpointing", root, rank=ranks[0],
                                        world_size=ranks[1], is_once=True, advice=ADVICE,
                                        **options)  # fmt: skip
        self.begun = {}  # By name. One set at a time: more are what failed saves left.
        self._handed_over = set()  # Their names: rank 0 publishes the folders, a little later.
        self._process, self._lock = os.getpid(), threading.Lock()

    def is_open(self):
        return self._process == os.getpid() and self.sets.is_open()

    def begin(self, name, is_begin):
        """The writer's threads call it. A save makes its folders before it writes any file."""
        with self._lock:
            found = self.begun.get(name)
            if found is None or (is_begin and (found.objects or files_of(found.folder))):
                self.begun = {name: self.sets.begin(name)}
            return self.begun[name]

    def commit(self, name):
        part, target = self.begun.pop(name), self.sets.directory / name
        is_there = name in self.sets.waiting() or (target.is_dir() and any(target.iterdir()))
        if self.sets.rank == 0 and is_there:
            part.give_up()
            raise FileExistsError(errno.ENOTEMPTY, "a checkpoint is there already", str(target))
        part.commit()
        if self.sets.rank != 0:
            self._handed_over.add(name)

    def await_folder(self, name, path):
        """Waits for the folder of a set that this process has captured; of others it does not."""
        if name not in self.sets.waiting() and name not in self._handed_over:
            return
        self._handed_over.discard(name)
        ends = time.monotonic() + OTHERS_DEADLINE
        with contextlib.suppress(errors.CheckpointError):  # The log has it; there is no folder.
            _publish_queue.settle(wait=True)
            while not os.path.exists(path) and time.monotonic() < ends:
                time.sleep(_publish_queue.LOOK_EVERY)


class _Nowhere(io.RawIOBase):
    """Takes the archive that torch.save makes: the daemon makes the same one of the objects."""

    def writable(self):
        return True

    def write(self, data):
        return memoryview(data).nbytes
