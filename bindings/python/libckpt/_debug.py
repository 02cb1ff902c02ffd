"""Debug: finds who changes a guarded tensor while it is captured, by checksums.

Version counters miss what is written through `.data` and into buffers, so the bytes are compared.
"""

import logging
import zlib

from libckpt import _tensors

logger = logging.getLogger("libckpt")


class Mutations:
    """Remembers the sums of guarded host tensors from a save to the guarded optimizer's step."""

    def __init__(self):
        self._seen = {}

    def begin(self, views, guarded):
        self._seen = {
            name: (view, _checksum(view.kept))
            for name, view in views.items()
            if view.gpu < 0 and name in guarded
        }

    def check(self):
        """Names of the tensors that changed; each is logged."""
        seen, self._seen = self._seen, {}
        changed = [name for name, (view, before) in seen.items() if _checksum(view.kept) != before]
        for name in changed:
            logger.error(
                'libckpt: tensor "%s" changed while it was captured, before the guarded '
                "optimizer's step: the capture may mix two steps; call session.finish_capture() "
                "before what changes it",
                name,
            )
        return changed


def _checksum(tensor):
    if _tensors.is_torch(tensor):
        import torch

        tensor = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(tensor.tobytes() if tensor.ndim == 0 else tensor)
