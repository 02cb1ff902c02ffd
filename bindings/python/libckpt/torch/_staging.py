"""Staging: the files written, moved and deleted by one block below its directory, before its set is
published.

    objects    given to torch.save, by name: captured when the block ends
    folder     files that were written, under the names that they are to have
    deleted    names that go when the set is published; until then a crash loses nothing
    removed    folders, likewise

The block sees its own files: an object that is read becomes a file at once.
"""

import contextlib
import errno
import os
import pathlib
import shutil

from libckpt.core.files import _disk


class Staging:
    """`settle(name)` publishes earlier blocks that wait if one of them is to change the name."""

    def __init__(self, directory, folder, objects_max, settle):
        self.directory = pathlib.Path(directory)
        self.folder = pathlib.Path(folder)
        self.objects = {}
        self.deleted = {}  # By name, which file lay there.
        self.removed = set()
        self.grown = {}  # By name of what was appended to: the size that it began with.
        self._objects_max = objects_max
        self._settle = settle

    def names(self):
        """The names that the set has from this block."""
        return {*self.objects, *_disk.files_of(self.folder)}

    def facts(self):
        """The facts that publishing needs besides the files, as plain data."""
        return {"deleted": self.deleted, "removed": sorted(self.removed), "grown": self.grown}

    def is_empty(self):
        return not (self.names() or self.deleted or self.removed)

    def take(self, name, content):
        """An object is captured at the end; beyond what a step has members, it is a file now."""
        self._clear(name)
        self.objects[name] = content
        if len(self.objects) > self._objects_max:
            self._write_object(name)

    def write_objects(self):
        """All of them become files."""
        for name in list(self.objects):
            self._write_object(name)

    # --- where a name is to be read and written ---

    def to_read(self, name, is_asked_only=False):
        """The path that has it; none: it is where it was. A mere question does not wait."""
        aside, live = self.folder / name, self.directory / name
        if name in self.objects:
            self._write_object(name)
        if os.path.lexists(aside) and not (aside.is_dir() and self._is_there(name)):
            return aside
        if self._is_gone(name):
            return aside  # Which is not there.
        if not (is_asked_only and os.path.lexists(live)):
            self._settle(name)
        return None

    def to_write(self, name, keeps=False):
        """The path to write. It `keeps` what there is, or begins anew."""
        if keeps:
            self._bring(name)
        else:
            self._clear(name)
        return self.folder / name

    def is_free(self, name):
        """Whether nothing has the name."""
        is_staged = name in self.objects or os.path.lexists(self.folder / name)
        return not is_staged and not self._is_there(name)

    def _bring(self, name):
        """A file that is appended to, or changed, begins as what it is now: as a copy."""
        aside = self.folder / name
        found = self.to_read(name) or self.directory / name
        self._comes_back(name)
        # A published set may have the file that a block moved.
        if found.is_file() and (found != aside or aside.stat().st_nlink > 1):
            copy = aside.with_name(f".{aside.name}.libckpt")
            shutil.copy(found, copy)
            os.rename(copy, aside)
        if found != aside:
            self.grown[name] = aside.stat().st_size if aside.is_file() else 0

    def _write_object(self, name):
        import torch

        content = self.objects.pop(name)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, path)

    def _clear(self, name):
        """Removes what the block wrote there; a file that is open stays for its readers."""
        self.objects.pop(name, None)
        self.grown.pop(name, None)
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            os.unlink(self.folder / name)
        self._comes_back(name)

    def _comes_back(self, name):
        self.deleted.pop(name, None)
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)

    def _is_gone(self, name):
        parents = [str(parent) for parent in pathlib.PurePath(name).parents]
        return name in self.deleted or not self.removed.isdisjoint([name, *parents])

    def _is_there(self, name):
        """Whether it lies in the directory, and the block has not deleted it."""
        return os.path.lexists(self.directory / name) and not self._is_gone(name)

    # --- deleting and moving; each answers whether it was done: if not, the stock call says why

    def unlink(self, name):
        live, aside = self.directory / name, self.folder / name
        if self.is_free(name):
            self._settle(name)
        if self.is_free(name) or _is_folder(live if self._is_there(name) else aside):
            return False
        self._clear(name)
        self._delete(name)
        return True

    def _delete(self, name):
        """Deletes the file with the publishing, also one that an earlier block has yet to publish
        there."""
        self.deleted[name] = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.deleted[name] = _disk.identity(self.directory / name)

    def rmdir(self, name):
        live, aside = self.directory / name, self.folder / name
        if self._is_there(name) and live.is_dir():
            entries = os.listdir(live)
            if any(not self._is_gone(os.path.join(name, entry)) for entry in entries):
                return False
            if entries:
                self.removed.add(name)
            else:
                os.rmdir(live)
        elif not aside.is_dir():
            return False
        for below in [other for other in self.objects if other.startswith(name + os.sep)]:
            del self.objects[below]
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def mkdir(self, name):
        """A folder that was removed is there again; its files are not."""
        if name not in self.removed:
            return False
        self.removed.discard(name)
        return True

    def rename(self, source, target):
        """Both lie below the directory."""
        if source != target and source not in self.objects:
            path = self.to_read(source) or self.directory / source
            if _is_folder(path):
                self._rename_folder(source, target)
                return True
        if self.is_free(source):
            return False
        if source != target:
            self._move(source, target)
        return True

    def _move(self, source, target):
        if source in self.objects:
            content = self.objects.pop(source)
            self._clear(target)
            self.objects[target] = content
        else:
            path = self.to_read(source)
            self._clear(target)
            if path is None:
                _disk.link_or_copy(self.directory / source, self.folder / target)
            else:
                os.rename(path, self.folder / target)
        if self._is_there(source):
            self._delete(source)

    def _rename_folder(self, source, target):
        if self._files_of(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        for name in self._files_of(source):
            self._move(os.path.join(source, name), os.path.join(target, name))
        (self.directory / target).mkdir(parents=True, exist_ok=True)
        for parent, _, _ in os.walk(self.directory / source, topdown=False):
            self.rmdir(os.path.relpath(parent, self.directory))
        shutil.rmtree(self.folder / source, ignore_errors=True)

    def _files_of(self, name):
        """All files below the folder as the block sees it, relative to it."""
        live = [os.path.join(name, file) for file in _disk.files_of(self.directory / name)]
        staged = [os.path.join(name, file) for file in _disk.files_of(self.folder / name)]
        objects = [other for other in self.objects if other.startswith(name + os.sep)]
        found = {*staged, *objects, *(file for file in live if not self._is_gone(file))}
        return sorted(os.path.relpath(file, name) for file in found)

    def to_move_out(self, name):
        """The path to move to elsewhere. A published file stays; a copy of it goes."""
        path, live = self.to_read(name), self.directory / name
        if path is None and live.is_symlink() and live.is_file():
            path = self.to_write(name, keeps=True)
        if path is not None and self._is_there(name):
            self._delete(name)
        return path


def _is_folder(path):
    return path.is_dir() and not path.is_symlink()
