"""Published sets: files of one step under the names that a program reads, all or nothing.

    DIR/.libckpt/work/                 sets that are being collected
    DIR/.libckpt/sets/NAME/model.pt    a whole set; never changed afterwards
    DIR/.libckpt/current -> sets/NAME  which set is the current one: one rename switches it
    DIR/model.pt -> .libckpt/current/model.pt

A set has, besides what its block wrote, all that the one before had and the block did not delete:
hard links of the same files. A process that dies leaves a whole set as the current one, whatever
else it leaves.
"""

import contextlib
import os
import pathlib
import shutil

from libckpt.core.files import _owner
from libckpt.core.files._disk import bring, files_of, identity, link_or_copy, sync, sync_tree
from libckpt.core.files._work import PRIVATE, WorkFolders

KEPT = 2  # The current one, and the one before for its readers.


class PublishedSets:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.private = self.directory / PRIVATE
        self.work = WorkFolders(self.private / "work")
        self.sets = self.private / "sets"
        self.current = self.private / "current"

    def publish(self, name, members, facts=None):
        """Makes the collected set the current one; `members` are more files of it, by name, and
        `facts` what its staging recorded besides."""
        with _owner.alone(self.private / "publishing"):  # Each set has what the one before had.
            self._publish(name, members, facts or {})

    def _publish(self, name, members, facts):
        deleted = facts.get("deleted", {})
        if not (self.sets / name).is_dir():  # Else a run was killed just after that.
            self._complete(name, members, deleted, facts.get("grown", {}))
        for file in files_of(self.sets / name):
            self._lead_to_current(file)
        self._switch(name)
        self._delete(deleted, facts.get("removed", ()))
        self.work.drop(name)  # With the notes on it.
        self._retire()

    def _complete(self, name, members, deleted, grown):
        folder = self.work.folder(name)
        for file, size in grown.items():
            self._append_rest(file, size, folder / file)
        for member, file in members.items():
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            bring(file, folder / member)
        self.sets.mkdir(exist_ok=True)
        written = files_of(folder)
        self._adopt(written)
        gone = {*written, *deleted}
        for file in files_of(self.current):
            # A name that was deleted outside of blocks does not come back.
            if file not in gone and self._leads_to_current(file):
                self._carry_over(file, folder)
        sync_tree(folder)
        os.rename(folder, self.sets / name)
        sync(self.sets)

    def _carry_over(self, file, folder):
        source, target = self.current / file, folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            with contextlib.suppress(FileExistsError):  # Left by a process that was killed here.
                os.symlink(os.readlink(source), target)
        else:
            link_or_copy(source, target)

    def _append_rest(self, name, size, staged):
        """Appends what the file got after the block, and before its set is published."""
        live = self.directory / name
        if not (live.is_file() and staged.is_file() and live.stat().st_size > size):
            return
        now, content = live.read_bytes(), staged.read_bytes()
        if now[:size] == content[:size]:
            with open(staged, "ab") as file:
                file.write(now[size:])

    def _switch(self, name):
        _put_link(self.current, pathlib.Path("sets") / name, self.private / "current.new")

    def _adopt(self, names):
        """Makes files there under these names that are in no set part of the current one, so that
        all switch at once. Without a current one they become the first."""
        there = [name for name in names if (self.directory / name).is_file()]
        found = [name for name in there if not self._leads_to_current(name)]
        if found and not self.current.is_symlink():
            shutil.rmtree(self.sets / "first", ignore_errors=True)
            (self.sets / "first").mkdir()
            self._switch("first")
        for name in found:
            target = self.current / name
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(self.directory / name, target)
        if found:
            sync_tree(os.path.realpath(self.current))
        for name in found:
            self._lead_to_current(name)

    def _leads_to_current(self, name):
        path = self.directory / name
        return path.is_symlink() and os.readlink(path) == self._lead(name)

    def _lead(self, name):
        return os.path.relpath(self.current / name, (self.directory / name).parent)

    def _delete(self, deleted, removed):
        """Deletes the files that the block deleted, unless something else lies there by now."""
        for name, known in deleted.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if self._leads_to_current(name) or identity(self.directory / name) == known:
                    os.unlink(self.directory / name)
        for name in sorted(removed, key=len, reverse=True):
            with contextlib.suppress(OSError):  # Something is in it again.
                os.rmdir(self.directory / name)

    def _lead_to_current(self, name):
        path = self.directory / name
        if not self._leads_to_current(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            _put_link(path, self._lead(name), path.with_name(f".{path.name}.libckpt"))

    def _retire(self):
        current = os.path.basename(os.readlink(self.current))
        others = [path for path in self.sets.iterdir() if path.name != current]
        others.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in others[: -(KEPT - 1) or None]:
            shutil.rmtree(path, ignore_errors=True)


def _put_link(path, target, aside):
    """A link in the place of what is there, in one rename."""
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    aside.symlink_to(target)
    os.rename(aside, path)
    sync(path.parent)
