"""Debug: sums over the bytes of host tensors, which show writes that no version counter counts.

PyTorch does not count what is written through `.data`, numpy or a library of its own.
"""

import logging

from libckpt.core import _tensors

logger = logging.getLogger("libckpt")


def sums_of(tensors):
    """By name, of those tensors that lie on the host."""
    kinds = {name: _tensors.kind_of(tensor) for name, tensor in tensors.items()}
    return {
        name: kinds[name].checksum(tensor)
        for name, tensor in tensors.items()
        if kinds[name].is_on_host(tensor)
    }


def log_changes(names):
    for name in names:
        logger.error(
            'libckpt: tensor "%s" changed between a save and the guarded optimizer\'s step: a '
            "capture that had not left it is dropped; call session.finish_capture() before what "
            "changes it",
            name,
        )
