"""Folders: step-N folders below a base path; the metadata, written last, makes one complete.

    BASE/step-100/metadata.json     {"step": 100, "timestamp": "...", "is_temporary": true}
    BASE/step-100/manifest.json     libckpt's own files, one set for each process
    BASE/.libckpt/                  what is on its way there
"""

import json
import logging
import os
import pathlib
import secrets
import shutil

from libckpt.core.files import _disk
from libckpt.core.files._work import PRIVATE

logger = logging.getLogger("libckpt")

METADATA = "metadata.json"


def local(path):
    """The path of a file system. Levanter's own may be that of a bucket, too."""
    return _disk.local(path, "folders of libckpt.levanter")


def metadata_of(folder):
    """None: the folder is no complete checkpoint."""
    return _read(folder) if _is_ours(folder) else None


def foreign(bases):
    """(step, path) of the newest checkpoint that Levanter itself wrote into one of these folders,
    or None."""
    paths = [path.parent for base in bases for path in pathlib.Path(base).glob(f"*/{METADATA}")]
    found = [(_read(path)["step"], path) for path in paths if not _is_ours(path) and _read(path)]
    return max(found, default=None)


def _is_ours(folder):
    return (pathlib.Path(folder) / "manifest.json").is_file()


def _read(folder):
    try:
        found = json.loads((pathlib.Path(folder) / METADATA).read_text())
        is_one = isinstance(found["step"], int) and isinstance(found["timestamp"], str)
        return found if is_one else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def discover(path, max_step=None):
    """The newest complete checkpoint at the path or below it, as a path; None: there is none."""
    path = pathlib.Path(path)
    found = []
    for directory, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        metadata = metadata_of(directory) if METADATA in names else None
        if metadata is not None and (max_step is None or metadata["step"] <= max_step):
            found.append((metadata["timestamp"], metadata["step"], directory))
    return max(found)[2] if found else None


def temporary(bases):
    """The complete temporary checkpoints in these folders, the oldest first."""
    paths = [path for base in bases for path in pathlib.Path(base).glob("step-*")]
    found = [(metadata["step"], metadata["timestamp"], path) for path in paths
             if (metadata := metadata_of(path) or {}).get("is_temporary")]  # fmt: skip
    return [path for *_, path in sorted(found)]


def publish(source, target, metadata):
    """The files of the checkpoint `source` as the folder `target`; its metadata comes last."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    whole = target.parent / PRIVATE / f"whole-{secrets.token_hex(4)}"
    whole.mkdir(parents=True)
    files = {name: source / name for name in _disk.files_of(source)}
    _disk.add_missing(files, whole, _disk.bring)
    _disk.sync_tree(whole)
    remove(target)
    os.rename(whole, target)
    _disk.replace_text(target / METADATA, json.dumps(metadata))
    _disk.sync(target.parent)
    logger.info("libckpt: %s is complete", target)


def remove(folder):
    """Removes a checkpoint of ours; it vanishes at once."""
    folder = pathlib.Path(folder)
    if not (folder / "manifest.json").is_file():
        return
    shutil.rmtree(_disk.set_aside(folder, folder.parent / PRIVATE / "trash"), ignore_errors=True)
    logger.info("libckpt: %s is deleted", folder)
