"""Work: folders that are being collected, and what is known of those that are captured.

    work/NAME/       being collected, hidden from every reader
    work/NAME.json   its facts, written once its capture is done: a later process can publish it
"""

import contextlib
import json
import os
import pathlib
import shutil

PRIVATE = ".libckpt"  # The folder in a user's directory that is ours alone.
NAME_MAX = 255  # Bytes, of a file on Linux.


class Work:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def begin(self, name):
        """An empty folder."""
        folder = self.directory / name
        self.drop(name)
        folder.mkdir(parents=True)
        return folder

    def folder(self, name):
        return self.directory / name

    def sync(self, name):
        sync_tree(self.folder(name))
        sync(self.directory)

    def note(self, name, facts):
        aside = self.directory / f".{name}.json"
        aside.write_text(json.dumps(facts))
        sync(aside)
        os.rename(aside, self.directory / f"{name}.json")
        sync(self.directory)

    def noted(self):
        """(name, facts) of what was captured and not published, the newest first."""
        found = []
        if self.directory.is_dir():
            for path in self.directory.glob("[!.]*.json"):
                with contextlib.suppress(ValueError, OSError):
                    facts = json.loads(path.read_text())
                    found.append((path.stat().st_mtime_ns, path.stem, facts))
        return [(name, facts) for _, name, facts in sorted(found, reverse=True)]

    def drop(self, name):
        """The note first: a reader that finds one finds all of the folder."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.directory / f"{name}.json")
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def drop_all(self):
        shutil.rmtree(self.directory, ignore_errors=True)


def can_place(path):
    """Whether a file of ours may stand there: not in the place of a folder, pipe or device, and
    with a name that leaves room for that of the file aside."""
    is_free = not path.exists() or path.is_file()
    return is_free and len(os.fsencode(path.name)) + len("..libckpt") <= NAME_MAX


def place(file, path):
    """Puts the file's bytes under the path. Readers of the old file keep it whole."""
    aside = path.with_name(f".{path.name}.libckpt")
    bring(file, aside)
    with contextlib.suppress(FileNotFoundError):
        os.chmod(aside, path.stat().st_mode & 0o777)  # As if it had been written into.
    sync(aside)
    os.rename(aside, path)
    sync(path.parent)


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
