"""Sharded folders: `checkpoint-N` folders with files of all ranks.

The Trainer's own `_save_checkpoint` runs as it is on every rank, into the rank's folder of a file
set. DeepSpeed's own files, and whole weights, are kept out of it: they are captured in memory.
FSDP's saves are written by torch.distributed.checkpoint at once. One rename brings the files of
all ranks, once they are on storage.
"""

import atexit
import contextlib
import functools
import logging
import pathlib
import weakref

from libckpt import errors
from libckpt.adapters.torch._file_sets import FileSets, options_of_place
from libckpt.adapters.torch._safetensors import METADATA
from libckpt.core import _signals
from libckpt.transformers._checkpoints import TrainerFolders
from libckpt.transformers._folders import ADVICE
from libckpt.transformers._weights import replaced

logger = logging.getLogger("libckpt")

_all = weakref.WeakSet()
AREA = "sharded"  # Below .libckpt; a Trainer that is not sharded has the rest.


class ShardedFolders(TrainerFolders):
    def __init__(self, trainer, options):
        super().__init__(trainer, None)
        self._options = options_of_place(options)
        self._sets = {}  # By folder of a run; None: Transformers writes there.
        _all.add(self)

    def save(self, stock_save, model, trial):
        trainer, folders = self._trainer, self.folders(trial)
        number = trainer.state.global_step
        fileset = self._begin(folders, number)
        if fileset is None:
            stock_save(model, trial)
            return
        shown = _shown(fileset, folders.path(number).name)
        try:
            self._collect(stock_save, model, trial, fileset, shown)
        except BaseException:
            fileset.give_up()
            raise
        self._note_best(folders)
        if trainer.args.should_save:
            trainer.state.save_to_json(str(fileset.folder / "trainer_state.json"))
        try:
            fileset.commit(then=functools.partial(self.rotate, folders))
        except Exception as error:  # Training is to go on.
            _signals.raise_of_handler(error)
            logger.error("libckpt: %s does not come: %s", folders.path(number), error)
        self._publish_if_wanted(folders, number)

    def _collect(self, stock_save, model, trial, fileset, shown):
        trainer, collecting = self._trainer, contextlib.nullcontext()
        if trainer.is_deepspeed_enabled:
            from libckpt.deepspeed import _folders

            if _folders.can_collect(trainer.model_wrapped):
                collecting = _folders.collecting(trainer.model_wrapped, fileset, str(shown))
        self._weights = _Weights(fileset, shown)
        try:
            with collecting, replaced(trainer, _get_output_dir=lambda trial=None: str(shown.parent),
                                      _push_from_checkpoint=lambda folder: None):  # fmt: skip
                stock_save(model, trial)
        finally:
            self._weights = None

    def finish(self):
        """Publishes what a killed run had captured on all ranks. All ranks call it."""
        folders = self.folders()
        if (folders.private / AREA).is_dir():
            sets = self._open(folders)
            if sets is not None:
                with contextlib.suppress(errors.CheckpointError):
                    sets.settle()

    def _begin(self, folders, number):
        """None: Transformers saves."""
        sets = self._open(folders)
        is_small = self._trainer.is_deepspeed_enabled  # FSDP's are written by torch itself.
        try:
            name = folders.path(number).name
            return None if sets is None else sets.begin(name, may_be_aside=is_small)
        except errors.CheckpointError as error:
            logger.error("libckpt: %s: %s; Transformers writes it itself",
                         folders.path(number), error)  # fmt: skip
            return None

    def _open(self, folders):
        key = str(folders.output)
        if key not in self._sets:
            args = self._trainer.args
            try:
                self._sets[key] = FileSets(
                    "trainer-files", key, rank=args.process_index, world_size=args.world_size,
                    area=AREA, keeps_foreign=False, advice=ADVICE, **self._options,
                )  # fmt: skip
            except (errors.CheckpointError, OSError) as error:
                logger.error("libckpt: %s; Transformers writes its checkpoints itself", error)
                self._sets[key] = None
        return self._sets[key]

    def _may_keep(self):
        return self._weights is not None and self._trainer.args.should_save

    def _waiting(self):
        sets = [sets for sets in self._sets.values() if sets is not None]
        return [name.rpartition("-")[2] for each in sets for name in each.waiting()]

    def _publish_if_wanted(self, folders, number):
        sets, trainer = self._sets[str(folders.output)], self._trainer
        try:
            if sets.decide("is read now", self._is_read_now(folders, number)):
                sets.settle()
        except errors.CheckpointError as error:
            logger.error("libckpt: %s may come late: %s", folders.path(number), error)
        if trainer.args.push_to_hub and trainer.args.should_save:
            trainer._push_from_checkpoint(str(folders.path(number)))

    def rotate(self, folders):
        """On rank 0, once the newest is there."""
        sets = self._sets[str(folders.output)]
        self._rotate(folders, lambda path: sets.remove(path.name) or folders.remove(path))


@atexit.register
def _leave():
    """The process ends, and DeepSpeed keeps the Trainer until the last moment: not the queues."""
    for folders in list(_all):
        folders._sets.clear()


def _shown(fileset, name):
    """The rank's folder of the set under a name that the Trainer gives its folders."""
    run = fileset.folder.with_name(f"run-{fileset.folder.name}")
    run.mkdir(exist_ok=True)
    shown = run / name
    if not shown.is_symlink():
        shown.symlink_to(fileset.folder, target_is_directory=True)
    return shown


class _Weights:
    """Takes what Transformers is about to write as a safetensors file for the file set."""

    def __init__(self, fileset, folder):
        self._fileset, self._folder = fileset, folder

    def take(self, tensors, path, metadata=None):
        """Whether the file is the set's; then its tensors are held until they are captured."""
        path = pathlib.Path(path)
        is_one = path.parent == self._folder and metadata == METADATA
        return is_one and self._fileset.take_tensors(path.name, tensors)
