"""Owner: the one process that captures for a private folder, of all on all nodes.

A second one, as another rank that saves into the same folder, would take the first one's job over
and drop what it has on its way. The kernel's record locks are used: they end with their process, no
child has them, and other nodes see them.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import time

from libckpt import errors
from libckpt.core.files import _disk

LOCK_DEADLINE = 60.0  # For a process that publishes: as long as copies of large files may take.
LOOK_EVERY = 0.02

_held = {}  # By the folder: its process, and the open file. To close it anywhere ends the lock.


def take(folder):
    """None when the folder is this process's from now on, else who has it, for people. Raises
    StorageError."""
    if folder in _held and _held[folder][0] == os.getpid():
        return None
    _disk.make_directory(pathlib.Path(folder).parent)
    try:
        file = open(f"{folder}.owner", "a+")
    except OSError as error:
        raise errors.StorageError(f"open {folder}.owner: {error.strerror}") from error
    if not _lock(file):
        with file:
            file.seek(0)
            return file.read().strip() or "another process"
    _held[folder] = (os.getpid(), file)
    with contextlib.suppress(OSError):  # On a full disk, it says nothing.
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    return None


def give_back(folder):
    if folder in _held:
        with contextlib.suppress(OSError):  # The text could not be written.
            _held.pop(folder)[1].close()


@contextlib.contextmanager
def alone(path):
    """No other process is in this block with the same path, unless it hangs there."""
    with open(path, "a+") as file:
        ends = time.monotonic() + LOCK_DEADLINE
        while not _lock(file) and time.monotonic() < ends:
            time.sleep(LOOK_EVERY)
        yield


def _lock(file):
    """Whether it was had. Where a file system has no locks, every process has it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
