"""Folders: what `save_state` writes, captured and put in its place by the daemon.

The Accelerator's own `save_state` runs as it is, into a hidden folder. Models, optimizers and
registered objects are kept out of it: a hook that it offers takes the models, and its lists of the
others are empty while it runs. They are captured under the names that it would have given them.
"""

import functools
import json
import logging
import os
import pathlib
import shutil

from accelerate.utils import (
    DistributedType,
    broadcast_object_list,
    clean_state_dict_for_safetensors,
    save,
)
from accelerate.utils.constants import (
    OPTIMIZER_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_NAME,
)

from libckpt import errors
from libckpt.accelerate._names import CHECKPOINTS, STEPS, Names
from libckpt.adapters.torch._file_sets import FileSets
from libckpt.core import _signals
from libckpt.core.files._work import PRIVATE, WorkFolders

logger = logging.getLogger("libckpt")


class Folders:
    """The folders of one Accelerator, by directory. They are opened when something is saved there,
    or resumed from, not when a program begins that only evaluates: a training may have them."""

    def __init__(self, accelerator):
        self._accelerator = accelerator
        self._sets = {}
        self._settings = accelerator.project_configuration
        self.names = Names(accelerator)

    def open_project(self):
        if self._settings.automatic_checkpoint_naming:
            self._open(self.names.project())

    def _open(self, directory):
        """Returns None after a failure, which is logged."""
        if directory not in self._sets:
            accelerator, sets = self._accelerator, None
            try:
                sets = FileSets("accelerate-files", directory, rank=accelerator.process_index,
                                world_size=accelerator.num_processes,
                                advice="total_limit says how many stay")  # fmt: skip
            except (errors.CheckpointError, OSError) as error:
                logger.error("libckpt: folders in %s: %s; accelerate writes them itself",
                             directory, error)  # fmt: skip
            self._sets[directory] = sets
        return self._sets[directory]

    # --- saving

    def save(self, stock, steps, output_dir, safe_serialization, **options):
        """In the place of `save_state`; `steps` are noted beside the folder's name."""
        is_named = self._settings.automatic_checkpoint_naming
        if output_dir is None and not is_named:
            return stock(output_dir, safe_serialization, **options)  # Raises.
        if is_named:
            directory = self.names.project()
            name = f"{CHECKPOINTS}/checkpoint_{self._settings.iteration}"
        else:
            directory, name = os.path.split(os.path.realpath(os.path.expanduser(output_dir)))
        sets = self._open(directory)
        path = pathlib.Path(directory, name)
        try:
            if sets is None:
                return stock(output_dir, safe_serialization, **options)
            if is_named and (path.exists() or name in sets.waiting()):
                raise ValueError(  # As accelerate does, which deletes the oldest one before.
                    f"Checkpoint directory {path} ({self._settings.iteration}) already exists. "
                    "Please manually override `self.save_iteration` with what iteration to start "
                    "with."
                )
            # With FSDP, torch writes the whole state itself.
            is_small = self._accelerator.distributed_type != DistributedType.FSDP
            fileset = sets.begin(name, may_be_aside=is_small)
        except errors.CheckpointError as error:
            logger.error("libckpt: %s: %s; accelerate saves instead", path, error)
            return stock(output_dir, safe_serialization, **options)
        try:
            self._collect(stock, fileset, safe_serialization, options)
        except BaseException:
            fileset.give_up()
            raise
        newest = json.dumps({"name": name, **steps})
        rotate = functools.partial(self._rotate, sets, name) if is_named else None
        try:
            fileset.commit({STEPS: newest}, then=rotate)
        except OSError as error:  # Training is to go on.
            _signals.raise_of_handler(error)
            logger.error("libckpt: %s does not come: %s", path, error)
        return path

    def _collect(self, stock, fileset, safe_serialization, options):
        accelerator, settings = self._accelerator, self._settings
        is_sharded = accelerator.distributed_type == DistributedType.FSDP
        optimizers, custom = accelerator._optimizers, accelerator._custom_objects
        for i, optimizer in enumerate(() if is_sharded else optimizers):
            self._keep(fileset, f"{OPTIMIZER_NAME}{_ending(i)}.bin", optimizer.state_dict())
        for i, registered in enumerate(custom):
            self._keep(fileset, f"custom_checkpoint_{i}.pkl", registered.state_dict())

        def take_weights(models, weights, folder):
            for i, state in enumerate(weights):
                self._keep_weights(fileset, i, state, safe_serialization)
            weights.clear()

        hook = accelerator.register_save_state_pre_hook(take_weights)
        is_named = settings.automatic_checkpoint_naming
        try:
            settings.automatic_checkpoint_naming = False
            accelerator._optimizers = optimizers if is_sharded else []
            accelerator._custom_objects = []
            stock(str(fileset.folder), safe_serialization, **options)
        finally:
            settings.automatic_checkpoint_naming = is_named
            accelerator._optimizers, accelerator._custom_objects = optimizers, custom
            hook.remove()

    def _keep(self, fileset, file, content):
        """The main process's, as accelerate has it; all of them have asked for it."""
        if self._accelerator.is_main_process:
            fileset.objects[file] = content

    def _keep_weights(self, fileset, number, state, is_safe):
        file = SAFE_WEIGHTS_NAME if is_safe else WEIGHTS_NAME
        file = file.replace(".", f"{_ending(number)}.")
        if not is_safe:
            self._keep(fileset, file, state)
        elif self._accelerator.is_main_process:
            state = clean_state_dict_for_safetensors(state)
            if not fileset.take_tensors(file, state):
                save(state, fileset.path(file), safe_serialization=True)

    def _rotate(self, sets, newest):
        """Once the newest is there: the oldest beyond the limit go."""
        limit = self._settings.total_limit
        if limit is None:
            return
        numbers = self.names.numbers()
        for number in numbers[: max(0, len(numbers) - max(limit, 1))]:
            name = f"{CHECKPOINTS}/checkpoint_{number}"
            if name != newest and not sets.remove(name):
                shutil.rmtree(sets.directory / name, ignore_errors=True)  # Stock accelerate's.

    # --- loading

    def have(self, step):
        """Whether the newest folder of a directory is there, and of this step."""
        return any(self.names.has_step(directory, step) for directory in self._sets)

    def settle(self):
        for sets in self._sets.values():
            if sets is not None:
                sets.settle()

    def settle_for(self, folder):
        """Publishes it, if it was saved and is on its way, also by a run that was killed."""
        path = pathlib.Path(os.path.realpath(os.path.expanduser(folder)))
        on_way = [[str(each) for each in path.parents[:2] if _is_noted(each, path)]]
        broadcast_object_list(on_way)  # As rank 0 sees it: it drops the notes at once.
        for directory in on_way[0]:
            self._open(directory)
        self.settle()


def _is_noted(directory, path):
    noted = WorkFolders(directory / PRIVATE / "work").noted()
    return any(facts["name"] == str(path.relative_to(directory)) for _, facts in noted)


def _ending(number):
    return f"_{number}" if number else ""
