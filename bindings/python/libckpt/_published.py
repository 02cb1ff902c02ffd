"""Published sets: files of one step under the names that a program reads, all or nothing.

    DIR/.libckpt/work/NAME/            being collected; NAME.json beside it once it is captured
    DIR/.libckpt/sets/NAME/model.pt    a whole set; never changed afterwards
    DIR/.libckpt/current -> sets/NAME  which set is the current one: one rename switches it
    DIR/model.pt -> .libckpt/current/model.pt

A process that dies leaves a whole set as the current one, whatever else it leaves.
"""

import contextlib
import json
import os
import pathlib
import shutil

PRIVATE = ".libckpt"
KEPT = 2  # The current one, and the one before for who still reads it.


class PublishedSets:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.private = self.directory / PRIVATE
        self.work, self.sets = self.private / "work", self.private / "sets"
        self.current = self.private / "current"

    def begin(self, name):
        """An empty folder for a set that is to be."""
        folder = self.work / name
        self.sets.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def sync_work(self, name):
        sync_tree(self.work / name)
        sync(self.work)

    def note(self, name, facts):
        """From now on a later process can publish the set, too."""
        aside = self.work / f".{name}.json"
        aside.write_text(json.dumps(facts))
        sync(aside)
        os.rename(aside, self.work / f"{name}.json")
        sync(self.work)

    def noted(self):
        """(name, facts) of captured sets that were not published, the newest first."""
        found = []
        if self.work.is_dir():
            for path in self.work.glob("*.json"):
                if (self.work / path.stem).is_dir() or (self.sets / path.stem).is_dir():
                    with contextlib.suppress(ValueError, OSError):
                        found.append((path.stat().st_mtime_ns, path.stem, path.read_text()))
        return [(name, json.loads(text)) for _, name, text in sorted(found, reverse=True)]

    def drop(self, name):
        shutil.rmtree(self.work / name, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.work / f"{name}.json").unlink()

    def drop_work(self):
        shutil.rmtree(self.work, ignore_errors=True)

    def publish(self, name, members):
        """Makes the collected set the current one; `members` are more files of it, by name."""
        if not (self.sets / name).is_dir():
            self._complete(name, members)
        for file in _files_of(self.sets / name):
            self._lead_to_current(file)
        self._switch(name)
        self.drop(name)  # The note.
        self._retire()

    def _complete(self, name, members):
        folder = self.work / name
        for member, file in members.items():
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, folder / member)
        sync_tree(folder)
        if not self.current.is_symlink():
            self._adopt(_files_of(folder))
        os.rename(folder, self.sets / name)
        sync(self.sets)

    def current_name(self):
        """The name of the current set; none: there is none yet."""
        return pathlib.Path(os.readlink(self.current)).name if self.current.is_symlink() else None

    def _switch(self, name):
        aside = self.private / "current.new"
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        aside.symlink_to(pathlib.Path("sets") / name)
        os.rename(aside, self.current)
        sync(self.private)

    def _adopt(self, names):
        """What lies there under these names becomes the first set, so that all switch at once."""
        first = self.begin("first")
        found = [name for name in names if (self.directory / name).is_file()]
        for name in found:
            (first / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(self.directory / name, first / name)
        sync_tree(first)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.sets / "first")
        os.rename(first, self.sets / "first")
        self._switch("first")

    def _lead_to_current(self, name):
        path = self.directory / name
        wanted = os.path.relpath(self.current / name, path.parent)
        if path.is_symlink() and os.readlink(path) == wanted:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.libckpt")
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        aside.symlink_to(wanted)
        os.rename(aside, path)
        sync(path.parent)

    def _retire(self):
        current = self.current_name()
        others = [path for path in self.sets.iterdir() if path.name != current]
        others.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in others[: -(KEPT - 1) or None]:
            shutil.rmtree(path, ignore_errors=True)


def place(file, path):
    """The file's bytes under the path, whose old file stays whole for who has it open."""
    aside = path.with_name(f".{path.name}.libckpt")
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    link_or_copy(file, aside)
    sync(aside)
    os.rename(aside, path)
    sync(path.parent)


def link_or_copy(source, target):
    """The same bytes under a second name; where there are no hard links, a copy."""
    source = os.path.realpath(source)
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
            sync(pathlib.Path(directory) / name)
        sync(directory)


def _files_of(folder):
    """All files below it, relative to it."""
    return sorted(
        os.path.relpath(os.path.join(directory, name), folder)
        for directory, _, names in os.walk(folder)
        for name in names
    )
