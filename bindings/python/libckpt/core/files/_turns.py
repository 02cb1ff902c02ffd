"""Turns: one call at a time publishes, or captures for files."""

import contextlib
import os
import threading

_turn = threading.RLock()


@contextlib.contextmanager
def turn(wait=True):
    """One thread after the other; yields whether it is ours. Without `wait` it may not be."""
    mine = _turn
    if mine._is_owned():
        yield True
        return
    try:  # From here on, since Ctrl-C may come right behind the call that takes it.
        yield mine.acquire(blocking=wait)
    finally:
        try:
            mine.release()
        except RuntimeError:  # It is another thread's.
            pass


def _forget_turn():
    global _turn
    _turn = threading.RLock()  # A thread that had it does not exist in a fork.


os.register_at_fork(after_in_child=_forget_turn)
