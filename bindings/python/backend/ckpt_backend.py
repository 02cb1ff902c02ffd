"""Backend: scikit-build-core, whose source distribution gets the C++ sources as well.

They lie above the folder of the Python project, where a backend does not look. In the archive they
are below `native`, where CMakeLists.txt finds them.
"""

import os
import pathlib
import tarfile

from scikit_build_core import build as _stock
from scikit_build_core.build import (
    build_editable as build_editable,
    build_wheel as build_wheel,
    get_requires_for_build_editable as get_requires_for_build_editable,
    get_requires_for_build_sdist as get_requires_for_build_sdist,
    get_requires_for_build_wheel as get_requires_for_build_wheel,
    prepare_metadata_for_build_editable as prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel as prepare_metadata_for_build_wheel,
)

PROJECT = pathlib.Path(__file__).resolve().parents[1]
NATIVE = "native"
SOURCES = ("CMakeLists.txt", "LICENSE", "bindings/c", "cmake", "libckpt")
LEFT_OUT = ("libckpt/docs", "__pycache__")


def build_sdist(sdist_directory, config_settings=None):
    name = _stock.build_sdist(sdist_directory, config_settings)
    if not (PROJECT / NATIVE).is_dir():  # As in what such an archive was unpacked to.
        _add_sources(pathlib.Path(sdist_directory) / name, PROJECT.parents[1])
    return name


def _add_sources(archive, root):
    whole = archive.with_suffix(".whole")
    top = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as before, tarfile.open(whole, "w:gz") as after:
        for member in before:
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
        for source in SOURCES:
            after.add(root / source, f"{top}/{NATIVE}/{source}", filter=_kept)
    os.replace(whole, archive)


def _kept(member):
    """As it is, but for what no build needs, and for whose it was and when."""
    path = member.name.partition(f"/{NATIVE}/")[2]
    if any(path == left_out or path.endswith(f"/{left_out}") for left_out in LEFT_OUT):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
