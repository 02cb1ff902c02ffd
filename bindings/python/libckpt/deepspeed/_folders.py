"""Folders: what engine.save_checkpoint promises, written by the daemon behind its back.

DeepSpeed's own save runs as it is, with a checkpoint engine of ours. That one keeps each file's
content instead of writing it; it is captured in memory, and becomes a file while training goes on.
The folder gets its name when the files of all ranks are there, and then `latest` names it.
"""

import contextlib
import functools
import logging
import os
import pathlib
import re

import torch
from deepspeed.checkpoint.constants import DS_VERSION, UNIVERSAL_CHECKPOINT_INFO
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from libckpt import errors
from libckpt.adapters.torch._file_sets import FileSets, options_of_place
from libckpt.core import _signals
from libckpt.core.files._work import PRIVATE
from libckpt.deepspeed import _universal

logger = logging.getLogger("libckpt")

ADVICE = "DeepSpeed deletes no folder: remove some"  # Where the disk is full.
PART = re.compile(r"zero_pp_rank_(\d+)_")  # In the name of a data parallel rank's file.


class Folders:
    def __init__(self, engine, layout, ranks, options):
        self._engine, self._layout, self._ranks = engine, layout, ranks
        self._options = options_of_place(options)
        self._sets = {}  # By directory; None: stock DeepSpeed writes there.
        self._saved = None  # The folder that was saved last.

    def save(self, stock, save_dir, tag=None, client_state={}, save_latest=True,
             exclude_frozen_parameters=False):  # fmt: skip
        """In the place of `save_checkpoint`."""
        engine = self._engine
        name = f"global_step{engine.global_steps}" if tag is None else str(tag)
        fileset = self._begin(save_dir, name) if save_dir else None
        self._saved = pathlib.Path(save_dir or "", name)
        if fileset is None:
            return stock(save_dir, tag, client_state, save_latest, exclude_frozen_parameters)
        try:
            with collecting(engine, fileset, os.path.join(save_dir, name)):
                # Without `latest`, which is to come after the folder.
                answer = stock(save_dir, name, client_state, False, exclude_frozen_parameters)
        except BaseException:
            fileset.give_up()
            raise
        try:
            fileset.commit({"latest": name} if save_latest else {})
        except Exception as error:  # Training is to go on.
            _signals.raise_of_handler(error)
            logger.error("libckpt: %s/%s does not come: %s", save_dir, name, error)
        return answer

    def write_universal(self, stock, directory, name, client_state):
        """A folder in the universal layout; it is there when this returns."""
        engine, sets = self._engine, self._open(directory)
        if sets is None:
            raise errors.StorageError(f"write_universal: {directory} cannot be written to")
        fileset = sets.begin(name)
        with collecting(engine, fileset, os.path.join(directory, name), ends=("model_states.pt",)):
            stock(directory, name, client_state, False)
        prologue = getattr(engine.optimizer, "checkpoint_event_prologue", None)
        if prologue is not None:
            prologue()
        _universal.write(self._layout, fileset)
        if prologue is not None:
            engine.optimizer.checkpoint_event_epilogue()
        fileset.commit({"latest_universal": name})
        sets.settle()

    def settle(self):
        """Returns when all folders that were promised are there, or were given up."""
        for sets in filter(None, self._sets.values()):
            sets.settle()

    def close(self):
        """Publishes all of it, and frees its memory: another engine may save there next."""
        for sets in filter(None, self._sets.values()):
            try:
                sets.close()
            except errors.CheckpointError as error:
                logger.error("libckpt: %s: %s", sets.directory, error)
        self._sets.clear()

    def finish(self, directory):
        """Publishes what was promised there, by this run or by one that was killed."""
        if (pathlib.Path(directory) / PRIVATE).is_dir():
            sets = self._open(directory)
            if sets is not None:
                with contextlib.suppress(errors.CheckpointError):
                    sets.settle()

    def newest(self, directory):
        """(number of the step, path, names in its client state) of the folder that load_checkpoint
        takes, or None, None and none."""
        found = None
        if self._layout.rank == 0:
            found = _newest(pathlib.Path(directory), self._engine.load_universal_checkpoint())
        return self._ranks.decide("newest folder", found, lambda said: said[0]) or (None, None, ())

    def has_step(self, step):
        """Whether the folder that was saved last is there, and of this step. All ranks call it."""
        has_it = False
        if self._layout.rank == 0 and self._saved is not None:
            has_it = _step_of(self._saved) == step
        return self._ranks.decide("step of the last folder", has_it, lambda said: said[0])

    def is_for_others(self, path):
        """Whether stock DeepSpeed refuses the folder here: it has the divided state of another
        number of data parallel ranks. All ranks call it."""
        refuses = False
        if self._layout.rank == 0 and not self._engine.load_universal_checkpoint():
            found = map(PART.search, map(str, pathlib.Path(path).glob("*_optim_states.pt")))
            numbers = {int(part[1]) for part in found if part}
            refuses = bool(numbers) and len(numbers) != self._engine.dp_world_size
        return self._ranks.decide("ranks of the folder", refuses, lambda said: said[0])

    def _begin(self, save_dir, name):
        """None: stock DeepSpeed saves."""
        if not can_collect(self._engine):
            return None
        sets = self._open(save_dir)
        try:
            return None if sets is None else sets.begin(name, may_be_aside=True)
        except errors.CheckpointError as error:
            logger.error("libckpt: %s: %s; stock DeepSpeed writes the folder", save_dir, error)
            return None

    def _open(self, directory):
        key = os.path.realpath(directory)
        if key not in self._sets:
            self._let_go()
            try:
                place = {"rank": self._layout.rank, "world_size": self._layout.ranks}
                self._sets[key] = FileSets("deepspeed", key, advice=ADVICE, **place,
                                          **self._options)  # fmt: skip
            except (errors.CheckpointError, OSError) as error:
                logger.error("libckpt: %s: %s; stock DeepSpeed writes its folders", key, error)
                self._sets[key] = None
        return self._sets[key]

    def _let_go(self):
        """One directory is open at a time, which takes memory for three folders: some have another
        one for each save, and may delete those before it soon."""
        for key, sets in list(self._sets.items()):
            try:
                if sets is None or sets.let_go():
                    del self._sets[key]
            except errors.CheckpointError as error:
                logger.error("libckpt: %s: %s", key, error)


def can_collect(engine):
    """Whether the writer that DeepSpeed has is the one whose files a file set makes, too."""
    writer = engine.checkpoint_engine
    is_plain = type(writer) is TorchCheckpointEngine and writer.zipfile_serialization
    return is_plain and not engine.use_node_local_storage()


@contextlib.contextmanager
def collecting(engine, fileset, folder, ends=("",)):
    """While it lasts, what DeepSpeed would write below `folder` is the file set's."""
    before = engine.checkpoint_engine
    engine.checkpoint_engine = Collector(before, fileset, folder, ends)
    copy = getattr(engine, "_copy_recovery_script", None)  # Another version may have none.
    engine._copy_recovery_script = functools.partial(_copy_scripts, copy)
    try:
        yield
    finally:
        engine.checkpoint_engine = before
        vars(engine).pop("_copy_recovery_script")  # The method is the class's again.


def _copy_scripts(copy, directory):
    """They are not of the folder, and DeepSpeed has them elsewhere, too."""
    try:
        if copy is not None:
            copy(directory)
    except OSError as error:  # Training is to go on.
        logger.warning("libckpt: DeepSpeed's scripts are not copied to %s: %s", directory, error)


class Collector(CheckpointEngine):
    """Takes what DeepSpeed would write below a folder, which it does not make."""

    def __init__(self, stock, fileset, folder, ends):
        self.name = "libckpt"
        self._stock, self._fileset, self._folder, self._ends = stock, fileset, folder, ends

    def create(self, info):
        pass

    def makedirs(self, path, exist_ok=False):
        if os.path.normpath(path) != os.path.normpath(self._folder):
            os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict, path):
        if path.endswith(self._ends):
            self._fileset.objects[os.path.relpath(path, self._folder)] = state_dict

    def load(self, path, map_location=None):
        return self._stock.load(path, map_location=map_location)

    def commit(self, info):
        return True

    def is_data_parallel_writer(self, dp_rank):
        return self._stock.is_data_parallel_writer(dp_rank)


def _newest(directory, is_universal):
    try:
        tag = (directory / ("latest_universal" if is_universal else "latest")).read_text().strip()
        state = _state_in(directory / tag)
        return state["global_steps"], str(directory / tag), _client_keys(state)
    except Exception as error:  # It is not there, or damaged, as DeepSpeed will find out itself.
        _signals.raise_of_handler(error)
        return None


def _step_of(folder):
    """None: it is not there, or damaged."""
    try:
        return _state_in(folder)["global_steps"]
    except Exception as error:
        _signals.raise_of_handler(error)
        return None


def ranks_of(directory):
    """The number of ranks that ZeRO divided the optimizer's state among in the folder that `latest`
    names: only as many can load it. None: it did not, or there is no such folder."""
    with contextlib.suppress(OSError):
        tag = (pathlib.Path(directory) / "latest").read_text().strip()
        files = (pathlib.Path(directory) / tag).glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")
        return len(list(files)) or None
    return None


def _client_keys(state):
    """The names that save_checkpoint was given: they lie behind what DeepSpeed writes itself."""
    names = list(state)
    behind = names[names.index(DS_VERSION) + 1 :] if DS_VERSION in names else []
    return sorted(str(name) for name in behind if name != UNIVERSAL_CHECKPOINT_INFO)


def _state_in(folder):
    file = sorted(folder.glob("*model_states.pt"))[0]
    try:
        return torch.load(file, map_location="cpu", mmap=True, weights_only=False)
    except RuntimeError:  # It is of the form before zip archives.
        return torch.load(file, map_location="cpu", weights_only=False)
