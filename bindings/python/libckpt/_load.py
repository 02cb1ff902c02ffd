"""Load: a published checkpoint without a session of its job, for one process."""

import os
import secrets

from libckpt.core.files import _reader
from libckpt.session import Session


def load_checkpoint(
    path, into=None, strict=True, *, arrays=(), renamed=None, shapes_only=False, allow_pickle=False
):
    """The newest checkpoint at the path, whatever job and number of ranks saved it: into the items
    of `into`, or as new ones in `Restored.items`. All else as in Session.restore. Each process
    reads all that it wants by itself, and items that each rank has of its own are those of rank 0.
    Starts no daemon."""
    _reader.check_enabled(path)
    options = {
        "job": f"reader-{os.getpid()}-{secrets.token_hex(4)}", "embedded": True,
        "rank": 0, "world_size": 1, "is_alone": True,
    }  # fmt: skip
    session = Session(options, allow_pickle=allow_pickle)
    session._restorer.makes_room = session._restorer.warns_of_left = False  # No saves follow.
    try:
        return session.restore(into, None, strict, arrays=arrays, path=path, renamed=renamed,
                               shapes_only=shapes_only)  # fmt: skip
    finally:
        session.abandon()
