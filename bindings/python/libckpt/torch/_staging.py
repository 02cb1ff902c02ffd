"""Staging: what one block has written, moved and deleted below its directory, before its set is
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

from libckpt.core.files import _work


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
        return {*self.objects, *_work.files_of(self.folder)}

    def facts(self):
        """What publishing must know besides the files, as plain data."""
        return {"deleted": self.deleted, "removed": sorted(self.removed), "grown": self.grown}

    def is_empty(self):
        return not (self.names() or self.deleted or self.removed)

    def take(self, name, content):
        """Whether the object was taken: there may be as many as a step has members."""
        if len(self.objects) >= self._objects_max and name not in self.objects:
            return False
        self._clear(name)
        self.objects[name] = content
        return True

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
        aside = self.folder / name
        if keeps:
            self._bring(name)
        else:
            self._clear(name)
        self._comes_back(name)
        return aside

    def is_free(self, name):
        """Whether nothing has the name."""
        aside = self.folder / name
        return name not in self.objects and not os.path.lexists(aside) and not self._is_there(name)

    def _bring(self, name):
        """A file that is appended to, or changed, begins as what it is now: as a copy."""
        aside, live = self.folder / name, self.directory / name
        if self.to_read(name) == aside:
            if aside.is_file() and aside.stat().st_nlink > 1:  # A published set has the file, too.
                self._copy(aside.read_bytes(), aside)
        elif live.is_file():
            content = live.read_bytes()
            aside.parent.mkdir(parents=True, exist_ok=True)
            self._copy(content, aside)
            shutil.copymode(live, aside)
            self.grown[name] = len(content)
        else:
            self.grown[name] = 0

    def _copy(self, content, aside):
        other = aside.with_name(f".{aside.name}.libckpt")
        other.write_bytes(content)
        os.rename(other, aside)

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
        is_staged = name in self.objects or (os.path.lexists(aside) and not aside.is_dir())
        is_live = self._is_there(name)
        if is_live and live.is_dir() and not live.is_symlink():
            return False
        if not is_staged and not is_live:
            self._settle(name)
            if not self._is_there(name):
                return False
        self._clear(name)
        self._delete(name)
        return True

    def _delete(self, name):
        """What lies there goes with the publishing; so does what an earlier block has yet to
        publish there."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.deleted[name] = _work.identity(self.directory / name)
            return
        self.deleted[name] = None

    def rmdir(self, name):
        live, aside = self.directory / name, self.folder / name
        if self._is_there(name) and live.is_dir():
            entries = [os.path.join(name, entry) for entry in os.listdir(live)]
            if any(not self._is_gone(entry) for entry in entries):
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
        if source == target:
            return not self.is_free(source)
        if source in self.objects:
            content = self.objects.pop(source)
            self._clear(target)
            self.objects[target] = content
            if self._is_there(source):
                self._delete(source)
            return True
        path = self.to_read(source) or self.directory / source
        if path.is_dir() and not path.is_symlink():
            return self._rename_folder(source, target)
        if not os.path.lexists(path):
            return False
        self._clear(target)
        if path == self.folder / source:
            os.rename(path, self.folder / target)
        else:
            _work.link_or_copy(path, self.folder / target)
        if self._is_there(source):
            self._delete(source)
        return True

    def to_move_out(self, name):
        """The path to move to elsewhere. A published file stays; a copy of it goes."""
        path, live = self.to_read(name), self.directory / name
        if path is None and live.is_symlink() and live.is_file():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._copy(live.read_bytes(), path)
        if path is not None and self._is_there(name):
            self._delete(name)
        return path

    def _rename_folder(self, source, target):
        there = [name for name in _work.files_of(self.directory / target)
                 if not self._is_gone(os.path.join(target, name))]  # fmt: skip
        if there or _work.files_of(self.folder / target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        live = [] if not self._is_there(source) else _work.files_of(self.directory / source)
        staged = _work.files_of(self.folder / source)
        objects = [os.path.relpath(name, source) for name in self.objects
                   if name.startswith(source + os.sep)]  # fmt: skip
        for name in sorted({*live, *staged, *objects}):
            if not self._is_gone(os.path.join(source, name)) or name not in live:
                self.rename(os.path.join(source, name), os.path.join(target, name))
        (self.directory / target).mkdir(parents=True, exist_ok=True)
        for parent, _, _ in os.walk(self.directory / source, topdown=False):
            self.rmdir(os.path.relpath(parent, self.directory))
        shutil.rmtree(self.folder / source, ignore_errors=True)
        return True
