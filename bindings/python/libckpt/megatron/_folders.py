"""Folders: `iter_NNNNNNN` in one of Megatron's formats, each whole or not there, the tracker last.

In the classic format the files of all ranks are captured, and the daemon brings them to storage
while training goes on. Where that cannot be, they are written here and now, as Megatron does it.
Files in `torch_dist` are always written by Megatron.
"""

import logging
import pathlib
import re

import torch

from libckpt import errors
from libckpt.adapters.torch._file_sets import FileSets
from libckpt.core import _signals
from libckpt.megatron import _classic, _torch_dist

logger = logging.getLogger("libckpt")

TRACKER = "latest_checkpointed_iteration.txt"
ADVICE = "max_ckpt_num of initialize_easyckpt says how many stay"  # Where the disk is full.
FOLDER = re.compile(r"^iter_(\d{7,})$")


class Folders:
    def __init__(self, directory, max_count, is_disabled, ckpt_format="torch"):
        self.directory = pathlib.Path(directory)
        self._is_torch_dist = ckpt_format == "torch_dist"
        self._max_count = max_count
        self._sets = None
        if is_disabled:
            return
        is_one = torch.distributed.is_initialized()
        self._rank = torch.distributed.get_rank() if is_one else 0
        world_size = torch.distributed.get_world_size() if is_one else 1
        sets, failure = None, None
        try:
            # Another job than that of the memory, which may be named for this directory, too.
            sets = FileSets("megatron-files", self.directory, rank=self._rank,
                            world_size=world_size, advice=ADVICE)  # fmt: skip
        except (errors.CheckpointError, OSError) as error:
            failure = error
        failure = _first_failure(failure)
        if failure is None:
            self._sets = sets
        else:  # All ranks write in one way: they wait for one another in it.
            logger.error("libckpt: %s; Megatron's checkpoints are written by torch", failure)

    def save(self, iteration, model, optimizer, scheduler, flops):
        """All ranks call it."""
        more = iteration, model, optimizer, scheduler, flops
        try:
            if self._sets is None:
                self._write(*more)
                return
            fileset = self._sets.begin(_classic.folder_of(iteration))
            if self._is_torch_dist:
                self._write_into(fileset, *more)
            else:
                fileset.objects.update(_classic.files_of(*more))
            fileset.commit({TRACKER: str(iteration)}, then=self._rotate)
        except Exception as error:  # Training goes on, whatever it is.
            _signals.raise_of_handler(error)
            logger.error("libckpt: save iteration %d to %s: %s", iteration, self.directory, error)

    def _write_into(self, fileset, *more):
        """All ranks write to one folder: that of rank 0, which has made it by then."""
        self._sets.decide("folder", None)
        try:
            _torch_dist.save(fileset.folder.with_name("rank-0"), *more)
        except Exception:
            fileset.give_up()
            raise

    def _write(self, iteration, *more):
        """As Megatron: the tracker when all ranks are done. A rank that fails is not waited for by
        the others, and there is no tracker then."""
        folder, failure = self.directory / _classic.folder_of(iteration), None
        files = {} if self._is_torch_dist else _classic.files_of(iteration, *more)
        try:
            if self._is_torch_dist:
                folder.mkdir(parents=True, exist_ok=True)
                _torch_dist.save(folder, iteration, *more)
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                torch.save(content, folder / name)
        except Exception as error:
            failure = error
        others = _first_failure(failure)
        if failure or others:
            raise failure or errors.StorageError(f"another rank could not write it: {others}")
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            (self.directory / TRACKER).write_text(str(iteration))

    def settle(self):
        """Returns when all that was saved is there. All ranks call it."""
        if self._sets is not None:
            self._sets.settle()

    def newest_in(self, directory):
        """As rank 0 finds it there: where others see a file later, all ranks still take one."""
        newest = newest_in(directory)
        if self._sets is None:
            return newest
        return self._sets._ranks.decide("newest folder", newest, lambda found: found[0])

    def close(self):
        if self._sets is not None:
            self._sets.close()

    def _rotate(self):
        """Keeps the newest folders that libckpt published, and the one that the tracker names."""
        if not self._max_count:
            return
        names = [path.stem for path in (self._sets.private / "sets").glob("iter_*.json")]
        found = sorted((int(match[1]), match[0]) for match in map(FOLDER.match, names) if match)
        latest = newest_in(self.directory)
        for iteration, name in found[: -self._max_count]:
            if iteration != latest:
                self._sets.remove(name)


def _first_failure(own):
    """The text of a rank's failure; None: none failed. All ranks call it."""
    said = None if own is None else f"{own}"
    if not torch.distributed.is_initialized():
        return said
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, said)
    return next((each for each in found if each is not None), None)


def refuse_other(directory):
    """Raises where the tracker names something that is no iteration: a release has weights alone,
    and to begin beside it from random ones is not what the program wants."""
    tracker = pathlib.Path(directory) / TRACKER
    try:
        found = tracker.read_text().strip()
    except OSError:
        return
    if found and newest_in(directory) is None:
        raise errors.Unsupported(
            f'load_checkpoint: {tracker} says "{found}", which is no iteration: megatron.training '
            "loads a release; without it load its weights yourself, and give load_checkpoint "
            "another load_dir"
        )


def newest_in(directory):
    """The iteration that the tracker names; None: there is none, or a release."""
    try:
        return int((pathlib.Path(directory) / TRACKER).read_text().strip())
    except (OSError, ValueError):
        return None
