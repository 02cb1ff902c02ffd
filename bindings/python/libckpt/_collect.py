"""Collect: leads what a block writes below one directory into a folder aside.

Inside the block, on its thread, `open` and the usual functions of `os` go to the folder for paths
below the directory, and `torch.save` gives its object to whoever collects. Everything else, and
every other thread, is as before; and so is everything once the block has ended.
"""

import builtins
import io
import os
import pathlib
import threading

WRITES = frozenset("wax+")
OF_ONE_PATH = ("stat", "chmod", "utime", "setxattr", "remove", "unlink")


class Collector:
    def __init__(self, directory, folder, take_object):
        self._root = os.path.abspath(directory)
        self._folder = pathlib.Path(folder)
        self._take_object = take_object  # take_object(object, relative name) -> whether it did.
        self._thread = threading.get_ident()
        self._before = {}

    def name_of(self, path):
        """The path relative to the directory; none: it is somewhere else."""
        if isinstance(path, int) or not isinstance(path, (str, bytes, os.PathLike)):
            return None
        if threading.get_ident() != self._thread:
            return None
        path = os.path.abspath(os.fsdecode(path))
        below = path.startswith(self._root + os.sep)
        return os.path.relpath(path, self._root) if below else None

    def staged(self, path, to_write):
        """Where to open the path."""
        name = self.name_of(path)
        if name is None or name.split(os.sep)[0] == ".libckpt":
            return path
        aside = self._folder / name
        if not to_write:
            return aside if self._is_aside(aside) else path
        aside.parent.mkdir(parents=True, exist_ok=True)
        return aside

    def _is_aside(self, path):
        try:
            self._before[os, "stat"](path)
        except OSError:
            return False
        return True

    def __enter__(self):
        import torch
        from torch import serialization

        self._replace(builtins, "open", self._open)
        self._replace(io, "open", self._open)
        self._replace(os, "replace", self._rename)
        self._replace(os, "rename", self._rename)
        for name in OF_ONE_PATH:
            self._replace(os, name, self._use)
        self._replace(torch, "save", self._save)
        # For who got hold of torch.save earlier: it writes aside, at once.
        self._replace(serialization, "_open_zipfile_writer", self._open_writer)
        return self

    def __exit__(self, *_):
        for (module, name), before in self._before.items():
            setattr(module, name, before)

    def _replace(self, module, name, function):
        self._before[module, name] = before = getattr(module, name)

        def replaced(*arguments, **options):
            return function(before, *arguments, **options)

        setattr(module, name, replaced)

    def _open(self, before, file, mode="r", *arguments, **options):
        to_write = bool(WRITES.intersection(mode))
        name = self.name_of(file)
        if to_write and name and ("a" in mode or "+" in mode):
            self._bring(file, name)
        return before(self.staged(file, to_write), mode, *arguments, **options)

    def _bring(self, file, name):
        """A file that is appended to, or changed, begins as what it is now."""
        aside = self._folder / name
        if not aside.exists() and os.path.exists(file):
            content = self._before[io, "open"](file, "rb").read()
            aside.parent.mkdir(parents=True, exist_ok=True)
            self._before[io, "open"](aside, "wb").write(content)

    def _use(self, before, path, *arguments, **options):
        return before(self.staged(path, False), *arguments, **options)

    def _rename(self, before, source, target, **options):
        aside = self.staged(source, False)
        if aside is source or self.name_of(target) is None:
            return before(source, target, **options)
        return before(aside, self.staged(target, True), **options)

    def _save(self, before, content, path, *arguments, **options):
        name = None if arguments or options else self.name_of(path)
        if name is None or not self._take_object(content, name):
            return before(content, path, *arguments, **options)
        return None

    def _open_writer(self, before, target):
        return before(target if self.name_of(target) is None else str(self.staged(target, True)))
