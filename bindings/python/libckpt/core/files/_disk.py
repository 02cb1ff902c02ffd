"""Disk: files and folders that others read appear whole, and are replaced and removed at once."""

import contextlib
import os
import pathlib
import secrets
import shutil

from libckpt import _native, errors

NAME_MAX = 255  # Bytes, of a file on Linux.


def local(path, what):
    """The real path of a folder for `what`. Raises Unsupported for a bucket's."""
    if "://" in os.fspath(path):
        raise errors.Unsupported(
            f'{path}: {what} lie on a file system; an option dir="{path}" keeps steps in a bucket '
            "besides"
        )
    return os.path.realpath(path)


def can_place(path):
    """Whether a file of ours may stand there: not in the place of a folder, pipe or device, and
    with a name that leaves room for that of the file aside."""
    is_free = not path.exists() or path.is_file()
    return is_free and len(os.fsencode(path.name)) + len("..libckpt") <= NAME_MAX


def make_directory(path):
    """With its parents. Raises StorageError, as where the file system is read-only."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.StorageError(f"make {path}: {error.strerror}") from error


def place(file, path):
    """Puts the file's bytes under the path. Readers of the old file keep it whole."""
    aside = path.with_name(f".{path.name}.libckpt")
    bring(file, aside)
    with contextlib.suppress(FileNotFoundError):
        os.chmod(aside, path.stat().st_mode & 0o777)  # As if it had been written into.
    sync(aside)
    os.rename(aside, path)
    sync(path.parent)


def replace_text(path, text):
    """Readers find the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.libckpt")
    aside.write_text(text)
    sync(aside)
    os.rename(aside, path)
    sync(path.parent)


def swap_in(folder, path):
    """Puts the folder under the path. One that was there lies under `folder` then."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, path)
    elif not _native.exchange(str(folder), str(path)):  # NFS: for a moment there is none.
        aside = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
        os.rename(path, aside)
        os.rename(folder, path)
        os.rename(aside, folder)
    sync(path.parent)


def set_aside(path, trash):
    """The folder vanishes for its readers. Returns where it lies now, to be deleted."""
    trash.mkdir(parents=True, exist_ok=True)
    aside = trash / f"{path.name}-{secrets.token_hex(4)}"
    os.rename(path, aside)
    sync(path.parent)
    return aside


def add_missing(files, folder, add):
    """Adds those of the files, by name, that the folder does not have, by `add(file, target)`."""
    for name, file in sorted(files.items()):
        target = folder / name
        if not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            add(file, target)


def bring(file, target):
    """A file of the daemon's, which only its user may read, as one that was written here."""
    link_or_copy(file, target)
    os.chmod(target, 0o666 & ~umask())


def umask():
    """The process's; to ask for it by os.umask would change it for a moment, for all threads."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("\nUmask:")[2].split()[0], 8)


def files_of(folder):
    """All files below it, links among them, relative to it."""
    found = []
    for directory, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(directory, name))]
        found += [os.path.relpath(os.path.join(directory, name), folder) for name in names + links]
    return sorted(found)


def numbers_of(folder, name):
    """The numbers, ascending, of the folders in it whose names match: the first group is one."""
    if not folder.is_dir():
        return []
    matches = (name.match(path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def identity(path):
    """Which file lies there, as plain data."""
    status = os.lstat(path)
    return [status.st_dev, status.st_ino, status.st_mtime_ns]


def link_or_copy(source, target):
    """The same bytes under a second name; where there are no hard links, a copy."""
    source = os.path.realpath(source)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)  # Left by a process that was killed here.
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder):
    for directory, _, names in os.walk(folder):
        for name in names:
            if not os.path.islink(os.path.join(directory, name)):
                sync(pathlib.Path(directory) / name)
        sync(directory)
