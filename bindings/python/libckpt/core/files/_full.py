"""Full: a disk that is full. All saves that wait for it wait once, and a user hears what helps."""

import errno
import os

FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EROFS)

_given_up = -1


def advised(error, advice):
    """The error in words, with what helps if the disk is full."""
    is_full = any(os.strerror(number) in str(error) for number in FULL)
    return f"{error}; {advice}" if is_full else str(error)


def give_up(newest):
    """Storage failed for long enough: `newest` is the number of the newest save that waited."""
    global _given_up
    assert newest >= 0
    _given_up = max(_given_up, newest)


def has_waited(number):
    return number <= _given_up
