"""The adapter for jax: how the processes of a job talk, and the refusal of an array among items.

Trees of arrays are saved by libckpt.jax, which knows which process holds what.
"""

from libckpt.adapters.jax import _coordinator
from libckpt.core import _frameworks, _tensors
from libckpt.errors import Unsupported


class Arrays(_tensors.Kind):
    """Refuses them by name: as a plain item an array would lose its sharding."""

    key = "jax"

    def is_kind_of(self, type_of_value):
        import jax

        return issubclass(type_of_value, jax.Array)

    def check(self, name, array):
        raise Unsupported(
            f'item "{name}" is a jax.Array: save it with libckpt.jax.Checkpointer, which keeps '
            "each process's part of it, or give its numpy.asarray()"
        )

    def is_contiguous(self, array):
        return True


class Jax(_frameworks.Adapter):
    tensors = Arrays()

    group = staticmethod(_coordinator.group_of)
    standing = staticmethod(_coordinator.standing)


ADAPTER = Jax()
