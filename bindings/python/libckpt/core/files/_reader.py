"""Reader: brings tensors of a published checkpoint to where they belong, without a session of its
job, and without a daemon. The checksum of every byte is verified.
"""

import contextlib
import os
import secrets

from libckpt import _native, errors
from libckpt.core import _launch, _settings, _structure


@contextlib.contextmanager
def opened():
    """A function `read(path, rank, choose)`: it brings what `choose(tensors, structure)` answers,
    of the shard that the rank saved. Tensors and answer are those of the native library."""
    options = {
        "job": f"reader-{os.getpid()}-{secrets.token_hex(4)}", "rank": 0, "world_size": 1,
        "embedded": True, "is_alone": True,
    }  # fmt: skip
    options, _ = _launch.complete(options)
    client = _native.Client(options)

    def read(path, rank, choose):
        def choose_of(_, stored, structure):
            return choose(stored, _structure.parsed(structure))

        check_enabled(path)
        return client.restore_from(os.fspath(path), rank, choose_of)

    try:
        yield read
    finally:
        client.drop()


def check_enabled(path):
    if _settings.is_true(_settings.configured("disable")):
        raise errors.Unsupported(
            f"load {path}: libckpt is disabled (LIBCKPT_DISABLE, or disable in the configuration "
            "file), and nothing else reads its files: enable it to load them"
        )
