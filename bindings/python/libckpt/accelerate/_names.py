"""Names: the folders that accelerate has numbered, and the steps of those that libckpt wrote."""

import json
import os
import pathlib
import re

from libckpt.core.files import _disk
from libckpt.core.files._work import PRIVATE

CHECKPOINTS = "checkpoints"
NAME = re.compile(r"^checkpoint_(\d+)$")
STEPS = f"{PRIVATE}/newest.json"  # Below the directory: the newest set, and its step.
UNKNOWN = -1


class Names:
    def __init__(self, accelerator):
        self._accelerator = accelerator
        self._settings = accelerator.project_configuration

    def project(self):
        return os.path.realpath(self._accelerator.project_dir)

    def numbers(self):
        """The numbers of the folders that accelerate named, ascending."""
        if not self._settings.automatic_checkpoint_naming:
            return []
        return _disk.numbers_of(pathlib.Path(self.project(), CHECKPOINTS), NAME)

    def newest(self):
        """[its path, *its steps] as far as accelerate named it; None: there is none."""
        numbers = self.numbers()
        if not numbers:
            return [None, UNKNOWN, UNKNOWN]
        folder = os.path.join(self.project(), CHECKPOINTS, f"checkpoint_{numbers[-1]}")
        return [folder, *self.steps_of(folder)]

    def steps_of(self, folder):
        """(step of a folder, that of its last update), or twice UNKNOWN: libckpt did not write it,
        or not as the newest. In the middle of an accumulation they differ: memory that has the
        update is better than the folder, which lacks the gradients since then."""
        directory, name = os.path.split(os.path.realpath(folder))
        for directory, name in (
            (directory, name),
            (os.path.dirname(directory), f"{os.path.basename(directory)}/{name}"),
        ):
            newest = _noted(directory)
            if newest is not None and newest["name"] == name:
                return newest["step"], newest.get("updated", newest["step"])
        return UNKNOWN, UNKNOWN

    def has_step(self, directory, step):
        """Whether the newest folder that libckpt wrote below it is there, and of this step."""
        newest = _noted(directory)
        is_of_step = newest is not None and newest["step"] == step
        return is_of_step and pathlib.Path(directory, newest["name"]).is_dir()

    def is_later(self, folder, saves):
        """Whether stock accelerate wrote this folder after `saves` others, and nothing notes its
        step: as while libckpt was switched off. (libckpt notes that of its own newest folder.)"""
        if folder is None or self.steps_of(folder)[0] != UNKNOWN:
            return False
        return int(NAME.match(os.path.basename(folder))[1]) >= saves

    def go_on_after_newest(self):
        """The next save gets a number that no folder has."""
        if self._settings.automatic_checkpoint_naming:
            numbers = self.numbers()
            self._settings.iteration = numbers[-1] + 1 if numbers else 0


def _noted(directory):
    """The note about the newest set below the directory; None: there is none."""
    try:
        return json.loads(pathlib.Path(directory, STEPS).read_text())
    except (OSError, ValueError):
        return None
