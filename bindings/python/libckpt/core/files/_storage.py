"""Reads what is on storage: step directories, manifests, blobs. Writes nothing."""

import json
import os
import pathlib
import re

STEP = re.compile(r"^step-(\d{9,})(\.g\d+)?$")
MANIFEST_BYTES_MAX = 256 << 20


def steps(directory):
    """(step, its directory) of what is published, the newest last; without a manifest it is not."""
    directory = pathlib.Path(directory)
    found = []
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    for name in names:
        match = STEP.match(name)
        if match and (directory / name / "manifest.json").exists():
            manifest = read_manifest(directory / name)
            if manifest is not None:
                found.append((manifest["timeline"], int(match.group(1)), directory / name))
    return [(step, path) for _, step, path in sorted(found)]


def read_manifest(step_directory):
    """The manifest; none when it is not whole."""
    path = pathlib.Path(step_directory) / "manifest.json"
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            return None
        manifest = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return manifest if manifest.get("format") == "libckpt-manifest" else None


def tensor_file(shard):
    """The safetensors file, with all tensors that are in no archive."""
    return next(m["file"] for m in shard["members"] if m["kind"] == "safetensors")


def archive_files(shard):
    """By name of the archive, the file that holds it."""
    files = {m["archive"]: m["file"] for m in shard["members"] if "archive" in m}
    for tensor in shard.get("tensors", ()):  # Of version 1, which has no names of archives.
        if "//" in tensor["name"] and shard["members"][tensor["member"]]["kind"] == "torch":
            archive = tensor["name"].split("//", 1)[0]
            files[archive] = shard["members"][tensor["member"]]["file"]
    return files


def find_step(directory, step, weights=None):
    """(its directory, by name of the member its file), or twice None.

    `weights` is the name for the file that holds the items that are tensors. Of several timelines
    that have the step it is the newest one's.
    """
    for found, path in reversed(steps(directory)):
        manifest = read_manifest(path) if found == step else None
        if manifest is not None:
            files = archive_files(manifest["shards"][0])
            if weights is not None:
                files[weights] = tensor_file(manifest["shards"][0])
            return path, {name: path / file for name, file in files.items()}
    return None, None
