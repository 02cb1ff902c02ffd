"""Turn: how a session is called: one call at a time, without searches for garbage, with steps."""

import contextlib
import functools
import gc
import operator
import os
import sys
import threading
import weakref

from libckpt import errors
from libckpt.core import _settings, _signals

STEP_MAX = (1 << 63) - 1


class Turn:
    """Another thread waits, and a call within a call is refused."""

    def __init__(self):
        self._lock = threading.RLock()
        self._frame = None  # The call's.

    def __enter__(self):
        self._lock.acquire()
        caller = sys._getframe(1)
        if self._frame is not None:
            self._lock.release()
            # If the call has gone, an exception (Ctrl-C) came just before it gave the lock back.
            if _is_within(caller, self._frame):
                self._refuse()
        self._frame = caller

    def __exit__(self, *_):
        self._frame = None
        self._lock.release()

    def _refuse(self):
        raise errors.InvalidArgument(
            "called in the middle of another call of the same session, by a signal handler or "
            "a state_dict(): set a flag there, and save after the step"
        )


def _is_within(frame, call):
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def no_collection():
    """A save makes thousands of small objects, none in a cycle. To search the heap for garbage
    meanwhile takes longer than the rest of the save."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def made(given):
    """The given value itself, or the result of the function that was given in its place."""
    return given() if callable(given) else given


def tried(given):
    """The same, as a function that returns or raises what this one does now."""
    if not callable(given):
        return given
    try:
        value = given()
    except Exception as error:
        _signals.raise_of_handler(error)
        return functools.partial(raised, error)
    return lambda: value


def raised(error):
    raise error


def while_alive(method):
    """The method, for as long as others keep its object; then nothing."""
    found = weakref.WeakMethod(method)

    def call(*arguments):
        if (alive := found()) is not None:
            alive(*arguments)

    return call


def check_open(job, is_closed, is_forked):
    if is_closed:
        raise errors.InvalidArgument(
            f"job {job}: the session was closed: open another with libckpt.init"
        )
    if is_forked:
        raise errors.InvalidArgument(
            f"job {job}: this process was forked from the trainer, which has the session: call it "
            "there"
        )


def step_number(step):
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number <= STEP_MAX:
        raise errors.InvalidArgument(
            f"step {step!r}: steps are whole numbers from 0 to {STEP_MAX}: give the count of the "
            "optimizer's steps"
        )
    return number


def check_source(source):
    if source not in (None, "memory", "storage"):
        raise errors.InvalidArgument(f'restore: source {source!r}: it is "memory" or "storage"')


def step_or_path(step, path, source):
    """Those of a restore, checked; `source` excludes a path."""
    check_source(source)
    if source is not None and path is not None:
        raise errors.InvalidArgument(
            f"restore from {os.fspath(path)!r}: give no source with it: the path is one"
        )
    return (None if step is None else step_number(step)), path_text(path, step)


def path_text(path, step):
    """The path of a restore; none: from what the daemons know."""
    if path is None:
        return None
    text = _settings.path_text(path, "restore from a path")
    if not text or step is not None:
        raise errors.InvalidArgument(
            f"restore step {step} from {text!r}: give one of them; the path names its step"
            if text
            else "restore from a path: it is empty"
        )
    return _settings.absolute(text)
