"""Published sets: files of one step under the names that a program reads, all or nothing.

    DIR/.libckpt/work/                 sets that are being collected
    DIR/.libckpt/sets/NAME/model.pt    a whole set; never changed afterwards
    DIR/.libckpt/current -> sets/NAME  which set is the current one: one rename switches it
    DIR/model.pt -> .libckpt/current/model.pt

A process that dies leaves a whole set as the current one, whatever else it leaves.
"""

import contextlib
import os
import pathlib
import shutil

from libckpt._work import Work, bring, link_or_copy, sync, sync_tree

PRIVATE = ".libckpt"
KEPT = 2  # The current one, and the one before for who still reads it.


class PublishedSets:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.private = self.directory / PRIVATE
        self.work = Work(self.private / "work")
        self.sets = self.private / "sets"
        self.current = self.private / "current"

    def publish(self, name, members):
        """Makes the collected set the current one; `members` are more files of it, by name."""
        if not (self.sets / name).is_dir():  # Else a run was killed just after that.
            self._complete(name, members)
        for file in _files_of(self.sets / name):
            self._lead_to_current(file)
        self._switch(name)
        self.work.drop(name)  # What was noted of it.
        self._retire()

    def current_name(self):
        """The name of the current set; none: there is none yet."""
        return pathlib.Path(os.readlink(self.current)).name if self.current.is_symlink() else None

    def _complete(self, name, members):
        folder = self.work.folder(name)
        for member, file in members.items():
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            bring(file, folder / member)
        sync_tree(folder)
        self.sets.mkdir(exist_ok=True)
        if not self.current.is_symlink():
            self._adopt(_files_of(folder))
        os.rename(folder, self.sets / name)
        sync(self.sets)

    def _switch(self, name):
        aside = self.private / "current.new"
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        aside.symlink_to(pathlib.Path("sets") / name)
        os.rename(aside, self.current)
        sync(self.private)

    def _adopt(self, names):
        """What lies there under these names becomes the first set, so that all switch at once."""
        first = self.work.begin("first")
        found = [name for name in names if (self.directory / name).is_file()]
        for name in found:
            (first / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(self.directory / name, first / name)
        sync_tree(first)
        shutil.rmtree(self.sets / "first", ignore_errors=True)
        os.rename(first, self.sets / "first")
        self._switch("first")
        for name in found:
            self._lead_to_current(name)

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


def _files_of(folder):
    """All files below it, relative to it."""
    return sorted(
        os.path.relpath(os.path.join(directory, name), folder)
        for directory, _, names in os.walk(folder)
        for name in names
    )
