"""Folders: `checkpoint-N` of Transformers, each of which appears complete or not at all.

    OUTPUT/.libckpt/work/RUN-1/checkpoint-N   being written into, by all ranks
    OUTPUT/.libckpt/work/N/checkpoint-N       collected: all of them have
    OUTPUT/.libckpt/trash/                on its way out: a folder that is deleted vanishes at once
"""

import json
import logging
import math
import pathlib
import re
import shutil
import zipfile

import safetensors

from libckpt.core.files import _disk
from libckpt.core.files._work import PRIVATE, WorkFolders

logger = logging.getLogger("libckpt")

NAME = re.compile(r"^checkpoint-(\d+)$")
SENTINEL = "checkpoint-is-incomplete.txt"
ADVICE = "save_total_limit says how many stay"  # Where the disk is full.


class Folders:
    def __init__(self, output):
        self.output = pathlib.Path(output)
        self.private = self.output / PRIVATE
        self.work = WorkFolders(self.private / "work")

    def path(self, number):
        return self.output / f"checkpoint-{number}"

    def has_optimizer(self, number):
        """With save_only_model it has not; DeepSpeed's is in a folder of its own."""
        folder = self.path(number)
        return any(True for name in ("*optimizer*", "global_step*") for _ in folder.glob(name))

    def publish(self, number, members):
        """Makes the collected folder visible; `members` are more files of it, by name."""
        name = str(number)
        folder = self.work.folder(name) / f"checkpoint-{number}"
        if not folder.is_dir():  # A run was killed just when it had published it.
            self.work.drop(name)
            return
        for member, file in members.items():
            _disk.bring(file, folder / member)
        path = self.path(number)
        if path.exists():  # Saved before, or begun by the just-in-time checkpoint.
            # Killed behind the exchange, the next run finds what was collected, and not what was
            # replaced.
            whole = self.work.folder(name) / "whole"
            shutil.rmtree(whole, ignore_errors=True)
            folder = shutil.copytree(folder, whole, symlinks=True,
                                     copy_function=_disk.link_or_copy)  # fmt: skip
        _disk.sync_tree(folder)
        _disk.swap_in(folder, path)
        self.work.drop(name)

    def remove(self, path):
        """It vanishes at once, and is deleted afterwards."""
        shutil.rmtree(_disk.set_aside(path, self.private / "trash"), ignore_errors=True)

    def rotate(self, limit, best, remove):
        """Removes the oldest beyond the limit by `remove(path)`; the newest and the best stay."""
        if limit is None or limit <= 0:
            return
        numbers = self.numbers()
        kept = {numbers[-1]} if numbers else set()
        kept.update(n for n in numbers if best is not None and self.path(n) == pathlib.Path(best))
        surplus = len(numbers) - max(limit, len(kept))
        for number in [n for n in numbers if n not in kept][: max(surplus, 0)]:
            remove(self.path(number))

    def numbers(self):
        """The numbers of all folders, ascending."""
        return _disk.numbers_of(self.output, NAME)

    def newest_whole(self, newest=math.inf):
        """The number of the newest folder up to that one that a resume can use. The log names newer
        ones that it cannot."""
        for number in reversed([each for each in self.numbers() if each <= newest]):
            problem = problem_of(self.path(number))
            if problem is None:
                return number
            logger.warning("libckpt: %s is not resumed from: %s", self.path(number), problem)
        return None


def problem_of(folder):
    """Why a resume from the folder would fail; none: it looks whole."""
    if (folder / SENTINEL).exists():
        return f"it has {SENTINEL}"
    try:
        json.loads((folder / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return "its trainer_state.json is missing or broken"
    problem = _problem_of_parts(folder)
    if problem is not None:
        return problem
    for path in folder.rglob("*"):
        if path.suffix in (".pt", ".pth", ".bin") and not zipfile.is_zipfile(path):
            return f"its {path.name} is broken"
        if path.suffix == ".safetensors" and not _is_whole(path):
            return f"its {path.name} is broken"
    return None


def _problem_of_parts(folder):
    """Why parts of several ranks are not whole; none: they are. Each kind has a last file."""
    for path in folder.iterdir():
        if path.name.startswith("global_step") and not (folder / "latest").is_file():
            return f"nothing names its {path.name} as latest"
        is_of_fsdp = path.name.startswith(("pytorch_model_fsdp_", "optimizer_")) and path.is_dir()
        if is_of_fsdp and not (path / ".metadata").is_file():
            return f"its {path.name} has no .metadata"
    return None


def _is_whole(path):
    """Whether a safetensors file is as long as its header says."""
    try:
        with safetensors.safe_open(path, framework="numpy"):
            return True
    except (safetensors.SafetensorError, OSError):
        return False
