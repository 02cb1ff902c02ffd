"""Folders: a checkpoint in DCP's own format, written by DCP's own writer, appears whole or not at
all.

    PARENT/.libckpt/work/NAME/   where all ranks write
    PARENT/NAME/                 the checkpoint: one rename brings it, once all of it is on storage
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
import time

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta

from libckpt import errors
from libckpt.core.files import _disk
from libckpt.core.files._work import PRIVATE
from libckpt.dcp import _names

logger = logging.getLogger("libckpt")

ABANDONED_SECONDS = 24 * 3600  # A save that takes longer than a day was killed.
OF_DCP = (".distcp", ".metadata")


class Folder:
    """One save, on this rank."""

    def __init__(self, path):
        self._target = pathlib.Path(os.path.realpath(path))
        self._private = self._target.parent / PRIVATE
        self._work = self._private / "work" / self._target.name
        self._writer = _Writer(self._work, self._target)

    def set_up(self, is_coordinator, **options):
        if not options.get("use_collectives", True):
            raise errors.Unsupported(
                f"dcp: save {self._target} with use_collectives=False: no rank knows when all have "
                "written, so the folder cannot appear whole: leave that option out"
            )
        self._writer.set_up_storage_writer(is_coordinator, **options)

    def prepare_global_plan(self, plans):
        """On the coordinator, before any rank writes."""
        if self._target.exists() and not self._target.is_dir():
            raise errors.InvalidArgument(f"dcp: save {self._target}: a file is there: remove it")
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        self._drop_abandoned()
        return _names.of_writers(self._writer.prepare_global_plan(plans))

    def write(self, plan, planner):
        self._work.mkdir(parents=True, exist_ok=True)  # Another node may not see it yet.
        try:
            return self._writer.write_data(plan, planner).value()
        except Exception:  # On a full disk the next save wants its room.
            for file in self._work.glob(f"{plan.storage_data.prefix}*"):
                file.unlink(missing_ok=True)
            raise

    def finish(self, metadata, results):
        """On the coordinator, when all ranks have written."""
        try:
            self._writer.finish(metadata, results)
            if self._target.is_dir():
                self._keep_foreign()
            _disk.sync_tree(self._work)
        except Exception:
            shutil.rmtree(self._work, ignore_errors=True)
            raise
        _disk.swap_in(self._work, self._target)
        shutil.rmtree(self._work, ignore_errors=True)  # An older one.
        logger.info("libckpt: %s is complete", self._target)

    def _keep_foreign(self):
        """Files that are not DCP's, in the folder that is replaced, stay."""
        names = [name for name in _disk.files_of(self._target) if not name.endswith(OF_DCP)]
        foreign = {name: self._target / name for name in names}
        _disk.add_missing(foreign, self._work, _disk.link_or_copy)

    def _drop_abandoned(self):
        """Removes the folders that killed runs left."""
        oldest = time.time() - ABANDONED_SECONDS
        for folder in (self._private / "work").iterdir():
            with contextlib.suppress(OSError):
                if folder != self._work and folder.stat().st_mtime < oldest:
                    shutil.rmtree(folder, ignore_errors=True)


class Stock(FileSystemWriter):
    """DCP's own writer, where libckpt is disabled."""

    def set_up(self, is_coordinator, **options):
        self.set_up_storage_writer(is_coordinator, **options)
        os.makedirs(self.path, exist_ok=True)

    def write(self, plan, planner):
        return self.write_data(plan, planner).value()


class _Writer(FileSystemWriter):
    """DCP's, whose metadata says where the checkpoint will be."""

    def __init__(self, work, target):
        super().__init__(work)
        self._target = target

    def storage_meta(self):
        return dataclasses.replace(super().storage_meta() or StorageMeta(),
                                   checkpoint_id=self._target)  # fmt: skip
