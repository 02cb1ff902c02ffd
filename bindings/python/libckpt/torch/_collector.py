"""Collector: leads what a block does below one directory into its staging.

Inside the block, on its thread, `open` and the usual functions of `os` go there for paths below the
directory, however they are spelled, and `torch.save` gives its object. Everything else, and every
other thread, is as before; and so is everything once the block has ended.
"""

import builtins
import contextlib
import functools
import io
import os
import threading

from libckpt.core.files._work import PRIVATE

WRITES = frozenset("wax+")
OF_ONE_PATH = ("stat", "lstat", "readlink", "chmod", "utime", "setxattr")
LINKS_MAX = 40  # As Linux.


class Collector:
    def __init__(self, directory, staging):
        self._root = os.path.realpath(directory)
        self._spelled = os.path.abspath(directory)
        self._staging = staging
        self._thread = threading.get_ident()
        self._is_inside = False  # One of our own calls.
        self._replaced = []  # (Module, name, what was there, what is there now).
        self._is_over = False
        self.led_out = set()  # Names below the directory whose folder is a link to elsewhere.

    def name_of(self, path, dir_fd=None, follow=True):
        """The path relative to the directory; none: it is somewhere else.

        Links are followed as the system would; the last one only if it leads here from elsewhere.
        """
        if self._is_inside or threading.get_ident() != self._thread:
            return None
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None  # A descriptor, say.
        with self._inside():
            path = os.fsdecode(path)
            if dir_fd is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
            name = self._below(path)
            for _ in range(LINKS_MAX if follow else 0):
                if name is not None or not os.path.islink(path):
                    break
                path = os.path.join(os.path.dirname(path), os.readlink(path))
                name = self._below(path)
        return name

    def _below(self, path):
        path = os.path.join(os.getcwd(), path.rstrip(os.sep) or os.sep)
        parent, last = os.path.split(path)
        whole = last in ("", os.curdir, os.pardir)
        real = os.path.realpath(path) if whole else os.path.join(os.path.realpath(parent), last)
        if real.startswith(self._root + os.sep):
            name = os.path.relpath(real, self._root)
            return None if name.split(os.sep)[0] == PRIVATE else name
        if os.path.abspath(path).startswith((self._root + os.sep, self._spelled + os.sep)):
            self.led_out.add(path)
        return None

    def __enter__(self):
        import torch
        from torch import serialization

        self._replace(builtins, "open", self._open)
        self._replace(io, "open", self._open)
        self._replace(os, "open", self._open_descriptor)
        for name in OF_ONE_PATH:
            self._replace(os, name, self._where_it_is)
        staging = self._staging
        done = {"remove": staging.unlink, "unlink": staging.unlink, "rmdir": staging.rmdir,
                "mkdir": staging.mkdir}  # fmt: skip
        for name, do in done.items():
            self._replace(os, name, functools.partial(self._do, do))
        for name in ("rename", "replace"):
            self._replace(os, name, self._rename)
        self._replace(os, "symlink", self._symlink)
        self._replace(os, "link", self._link)
        self._replace(torch, "save", self._save)
        # A torch.save that was imported by name before writes aside, at once.
        self._replace(serialization, "_open_zipfile_writer", self._open_writer)
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """All is as before. Call it again if an exception, as of Ctrl-C, came within it."""
        self._is_over = True
        for module, name, before, replaced in self._replaced:
            if getattr(module, name) is replaced:  # Else somebody put another in its place since.
                setattr(module, name, before)

    @contextlib.contextmanager
    def _inside(self):
        """Our own calls go where they say."""
        self._is_inside = True
        try:
            yield self._staging
        finally:
            self._is_inside = False

    def _replace(self, module, name, function):
        before = getattr(module, name)

        def replaced(*arguments, **options):
            if self._is_over or (self._is_inside and threading.get_ident() == self._thread):
                return before(*arguments, **options)
            return function(before, *arguments, **options)

        self._replaced.append((module, name, before, replaced))
        setattr(module, name, replaced)

    # --- files ---

    def _to_open(self, file, writes, keeps, is_new, dir_fd=None):
        name = self.name_of(file, dir_fd)
        if name is None:
            return file
        with self._inside() as staging:
            if not writes:
                return staging.to_read(name) or file
            if is_new and not staging.is_free(name):
                return staging.to_read(name) or file  # Where it fails.
            return staging.to_write(name, keeps)

    def _open(self, before, file, mode="r", *arguments, **options):
        writes = bool(WRITES.intersection(mode))
        keeps = "a" in mode or ("+" in mode and "w" not in mode and "x" not in mode)
        return before(self._to_open(file, writes, keeps, "x" in mode), mode, *arguments, **options)

    def _open_descriptor(self, before, path, flags, mode=0o777, *, dir_fd=None):
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        is_new = bool(flags & os.O_EXCL and flags & os.O_CREAT)
        if not flags & os.O_DIRECTORY:
            path = self._to_open(path, writes, not flags & os.O_TRUNC, is_new, dir_fd)
        return before(path, flags, mode, dir_fd=dir_fd)

    def _save(self, before, content, path, *arguments, **options):
        name = None if arguments or options else self.name_of(path)
        if name is None:
            return before(content, path, *arguments, **options)
        with self._inside() as staging:
            staging.take(name, content)

    def _open_writer(self, before, target):
        path = self._to_open(target, writes=True, keeps=False, is_new=False)
        return before(path if path is target else str(path))

    # --- names ---

    def _where_it_is(self, before, path, *arguments, **options):
        name = self.name_of(path, options.get("dir_fd"), options.get("follow_symlinks", True))
        if name is not None:
            with self._inside() as staging:
                path = staging.to_read(name, is_asked_only=True) or path
        return before(path, *arguments, **options)

    def _do(self, do, before, path, *arguments, dir_fd=None, **options):
        """Calls staging's function for the name, or else the stock function."""
        name = self.name_of(path, dir_fd, follow=False)
        if name is not None:
            with self._inside() as staging:
                if do(name):
                    return
                path = staging.to_read(name, is_asked_only=True) or path  # Where it fails.
        before(path, *arguments, dir_fd=dir_fd, **options)

    def _rename(self, before, source, target, *, src_dir_fd=None, dst_dir_fd=None):
        options = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
        name = self.name_of(source, src_dir_fd, follow=False)
        other = self.name_of(target, dst_dir_fd, follow=False)
        if name is None and other is None:
            return before(source, target, **options)
        with self._inside() as staging:
            if name is None:
                target = staging.to_write(other)
            elif other is None:
                source = staging.to_move_out(name) or source
            elif staging.rename(name, other):
                return None
        return before(source, target, **options)

    @staticmethod
    def _to_make(staging, name, path):
        """Where to make a link, or where that fails since there is something."""
        return staging.to_write(name) if staging.is_free(name) else staging.to_read(name) or path

    def _symlink(self, before, source, target, *arguments, **options):
        name = self.name_of(target, options.get("dir_fd"), follow=False)
        if name is not None:
            with self._inside() as staging:
                target = self._to_make(staging, name, target)
        before(source, target, *arguments, **options)

    def _link(self, before, source, target, **options):
        name = self.name_of(source, options.get("src_dir_fd"))
        other = self.name_of(target, options.get("dst_dir_fd"), follow=False)
        if name is None and other is None:
            return before(source, target, **options)
        with self._inside() as staging:
            if name is not None:
                source = os.path.realpath(staging.to_read(name) or source)
            if other is not None:
                target = self._to_make(staging, other, target)
        return before(source, target, **options)
