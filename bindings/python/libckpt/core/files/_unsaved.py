"""Unsaved: paths whose newest save was lost, so that an older file is not read in its place."""

import contextlib
import os

_reasons = {}  # By path: the file there when the save was lost, and the reason.
_unreported = {}  # Those of them that only the log has.


def note(paths, reason):
    for path in map(_in_full, paths):
        _reasons[path] = _unreported[path] = (_identity(path), str(reason))


def reason(path):
    """Why the newest save to the path is not there; None: it is, or something newer."""
    for spelled in (_in_full(path), os.path.realpath(path)):
        if spelled in _reasons:
            identity, why = _reasons[spelled]
            if identity == _identity(spelled):
                return why
            del _reasons[spelled]  # It was saved again.
    return None


def take_unreported():
    """By path, why: of what was lost since the last call, and not saved again since."""
    lost = {path: reason(path) for path in _unreported}
    _unreported.clear()
    return {path: why for path, why in lost.items() if why is not None}


def _in_full(path):
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(parent), name)


def _identity(path):
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return (status.st_dev, status.st_ino, status.st_mtime_ns)
    return None
