"""Signals: an exception that a handler of the program's raises is no failure of what it came in.

Python runs handlers between any two lines of the main thread, so also within a save. Such an
exception is meant for the program: to end in order, or to stop what takes too long.
"""

import functools
import signal
import types

from libckpt.errors import CheckpointError


def raise_of_handler(error):
    """Raises the error, or the one that became ours, if a handler of a signal raised it."""
    found = [error]
    if isinstance(error, CheckpointError) and error.__cause__ is not None:
        found.append(error.__cause__)
    codes = None
    for each in found:
        trace = each.__traceback__
        while trace is not None:
            codes = _codes() if codes is None else codes
            if trace.tb_frame.f_code in codes:
                raise each
            trace = trace.tb_next


def _codes():
    """Those of all handlers that are written in Python."""
    handlers = map(signal.getsignal, signal.valid_signals())
    return {code for handler in handlers if (code := _code_of(handler)) is not None}


def _code_of(handler):
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        if not isinstance(handler, types.MethodType):
            handler = getattr(type(handler), "__call__", None)  # An object of a class that has it.
        handler = getattr(handler, "__func__", handler)
    return getattr(handler, "__code__", None)
