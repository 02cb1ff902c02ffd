"""The steps of a private directory, and their files. Writes nothing."""

import contextlib
import os
import pathlib

from libckpt import _native, errors


def steps(directory):
    """(step, its directory) of what is published, the newest last."""
    try:
        found, _, _ = _native.published(os.fspath(directory))
    except errors.CheckpointError:
        return []
    return [(each["step"], pathlib.Path(each["path"])) for each in reversed(found)]


def files_of(step_directory, weights=None):
    """For each rank, by name of the archive, the file that holds it. `weights` is the name for rank
    0's file with the items that are tensors."""
    ranks = [
        {name: pathlib.Path(file) for name, file in files.items()}
        for files in _native.members(os.fspath(step_directory))
    ]
    for rank, files in enumerate(ranks):
        tensors = files.pop("", None)
        if weights and rank == 0:
            files[weights] = tensors
    return ranks


def find_step(directory, step, weights=None):
    """(its directory, by name of the member rank 0's file), or twice None. The newest timeline
    that has the step counts."""
    for found, path in reversed(steps(directory)):
        if found == step:
            with contextlib.suppress(errors.NotFound):  # It went meanwhile.
                return path, files_of(path, weights)[0]
    return None, None
