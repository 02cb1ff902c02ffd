"""Folders: `checkpoint-N` of Transformers, each of which appears complete or not at all.

    OUTPUT/.libckpt/work/N/checkpoint-N   being collected
    OUTPUT/.libckpt/trash/                on its way out: a folder that is deleted vanishes at once
"""

import json
import logging
import os
import pathlib
import re
import secrets
import shutil
import zipfile

import safetensors

from libckpt import _native
from libckpt.core.files._work import PRIVATE, Work, bring, sync, sync_tree

logger = logging.getLogger("libckpt")

NAME = re.compile(r"^checkpoint-(\d+)$")
SENTINEL = "checkpoint-is-incomplete.txt"


class Folders:
    def __init__(self, output):
        self.output = pathlib.Path(output)
        self.private = self.output / PRIVATE
        self.work = Work(self.private / "work")

    def path(self, number):
        return self.output / f"checkpoint-{number}"

    def publish(self, number, members):
        """Makes the collected folder visible; `members` are more files of it, by name."""
        name = str(number)
        folder = self.work.folder(name) / f"checkpoint-{number}"
        if not folder.is_dir():  # A run was killed just when it had published it.
            self.work.drop(name)
            return
        for member, file in members.items():
            bring(file, folder / member)
        sync_tree(folder)
        path = self.path(number)
        if path.exists():
            self._exchange(folder, path)
        else:
            os.rename(folder, path)
        sync(self.output)
        self.work.drop(name)

    def _exchange(self, folder, path):
        """One was there: saved before, or begun by the just-in-time checkpoint."""
        if not _native.exchange(str(folder), str(path)):
            self.remove(path)
            os.rename(folder, path)

    def remove(self, path):
        """It vanishes at once, and is deleted afterwards."""
        trash = self.private / "trash"
        trash.mkdir(parents=True, exist_ok=True)
        aside = trash / f"{path.name}-{secrets.token_hex(4)}"
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)

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
        if not self.output.is_dir():
            return []
        matches = (NAME.match(path.name) for path in self.output.iterdir() if path.is_dir())
        return sorted(int(match.group(1)) for match in matches if match)

    def newest_whole(self):
        """The number of the newest folder that a resume can use. The log names newer ones."""
        for number in reversed(self.numbers()):
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
