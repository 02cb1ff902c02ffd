"""Common: items that are the same on all ranks, as the caller states: a scheduler, arguments.

Each rank captures them itself, and so has them in its own shard. It also gives the library a digest
of each, which is compared with those of the other ranks when a step is stored.
"""

import ctypes
import hashlib
import json
import logging

from libckpt.core import _items, _tensors
from libckpt.errors import CheckpointError, InvalidArgument

logger = logging.getLogger("libckpt")

PREFIX = "libckpt.common/"  # When a step is stored, the ranks' blobs of such names are compared.
TENSOR_BYTES_MAX = 1 << 20  # They are read in each save, on the training thread.


class Common:
    def __init__(self, client):
        self._client = client
        self._stated = set()  # Names that the newest save gave.
        self._refused = set()  # Names that were logged.

    def state(self, step, names, items, allow_pickle):
        """Says which items are common in the save that follows. An item that cannot be compared is
        logged and left out: the save is worth more."""
        names = {names} if isinstance(names, str) else set(names)
        for name in sorted(self._stated - names):
            self._client.set_blob(PREFIX + name, b"")  # Nothing to compare.
        self._stated = set()
        for name in sorted(names):
            try:
                self._client.set_blob(PREFIX + name, _digest(name, items, allow_pickle))
                self._stated.add(name)
            except (CheckpointError, RuntimeError, NotImplementedError) as error:
                if name not in self._refused:
                    logger.warning("libckpt: save step %d: common: not compared: %s", step, error)
                self._refused.add(name)


def _digest(name, items, allow_pickle):
    if name not in items:
        raise InvalidArgument(f'"{name}" is none of the items')
    structure, tensors, members = _items.flatten({name: items[name]}, allow_pickle)
    if members:
        raise InvalidArgument(f'item "{name}" is a file')
    if sum(tensor.nbytes for tensor in tensors.values()) > TENSOR_BYTES_MAX:
        raise InvalidArgument(
            f'item "{name}" has tensors of more than {TENSOR_BYTES_MAX} bytes: give them '
            "as arrays that count their copies"
        )
    # Dictionaries that differ only in the order of their keys count as equal.
    digest = hashlib.sha256(json.dumps(json.loads(structure), sort_keys=True).encode())
    for path, tensor in sorted(tensors.items()):
        if _tensors.kind_of(tensor).gpu_of(tensor) >= 0:
            raise InvalidArgument(f'tensor "{path}" is on a GPU: keep it on the host')
        stored = _tensors.as_stored(tensor)
        digest.update(ctypes.string_at(_tensors.address_of(stored), tensor.nbytes))
    return digest.digest()
