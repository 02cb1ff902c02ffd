"""Newest: the newest file of a Trainer's ModelCheckpoints that can be loaded."""

import logging
import pathlib

import torch

from libckpt import errors
from libckpt.core import _signals
from libckpt.lightning import _unvalidated

logger = logging.getLogger("libckpt")

NOTHING = (None, -1, None)


def find(directories, is_fit):
    """(its path, its step, the step in memory that is better), or NOTHING. A fit goes on from files
    with the states of the optimizers only, which `save_weights_only` leaves out: Lightning refuses
    others."""
    files = [path for directory in directories
             for path in pathlib.Path(directory).glob("*.ckpt") if path.is_file()]  # fmt: skip
    passed = []
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            there = torch.load(path, mmap=True, weights_only=False, map_location="cpu")
            step, is_whole = int(there["global_step"]), "optimizer_states" in there
        except Exception as error:  # Reading a pickle may raise anything.
            _signals.raise_of_handler(error)
            logger.warning("libckpt: %s is not resumed from: %s", path, error)
            continue
        if is_whole or not is_fit:
            _log_passed(passed)
            return str(path), step, _unvalidated.memory_step(path.parent, step)
        passed.append(path)
    _log_passed(passed)
    return NOTHING


def _log_passed(files):
    if files:
        more = f", and {len(files) - 1} older" if len(files) > 1 else ""
        logger.warning("libckpt: %s is not resumed from%s: it has the weights alone, as "
                       "save_weights_only says, and a fit needs the optimizers' states",
                       files[0], more)  # fmt: skip


def nothing_to_evaluate(stage, directories):
    """Memory is a fit's: to ask for it would take the job from a training that runs."""
    stage = getattr(stage, "value", stage)
    where = ", ".join(map(str, directories)) or "any directory of a ModelCheckpoint"
    return errors.NotFound(
        f"{stage} with ckpt_path=NEWEST: there is no file in {where}, and memory is read by fit "
        "alone, since that would take the job from a running training; without the weights there "
        f"is nothing to {stage}: save a file, or call {stage} without ckpt_path for the module as "
        "it is"
    )
