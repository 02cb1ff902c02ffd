"""Debug: sums over the bytes of host tensors, which show writes that no version counter counts.

PyTorch does not count what is written through `.data`, numpy or a library of its own.
"""

import logging
import zlib

from libckpt import _tensors

logger = logging.getLogger("libckpt")


def sums_of(tensors):
    """By name, of those tensors that lie on the host."""
    return {
        name: _sum(tensor) for name, tensor in tensors.items() if tensor.device.type == "cpu"
    }


def log_changes(names):
    for name in names:
        logger.error(
            'libckpt: tensor "%s" changed between a save and the guarded optimizer\'s step: a '
            "capture that had not left it is dropped; call session.finish_capture() before what "
            "changes it",
            name,
        )


def _sum(tensor):
    tensor = tensor.detach().contiguous().reshape(-1).view(_tensors.byte_type()).numpy()
    return zlib.crc32(tensor)
