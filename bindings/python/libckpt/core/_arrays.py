"""Arrays: parts of larger tensors, for adapters of frameworks that shard their state.

A reader finds such a tensor by its name and by the place of the part, whichever ranks saved it.
"""

from libckpt import errors
from libckpt.core import _items, _tensors


class Array:
    """A tensor that is a box of a larger one, with `offset` in each dimension, or a range of it as
    it is flattened, from the element `flat` on. `copy`: ranks that hold the same part number their
    copies from 0. The memory is copied at each save, and filled in place by a restore.
    """

    __slots__ = ("buffer", "copy", "flat", "global_shape", "name", "offset")

    def __init__(self, name, buffer, *, global_shape, offset=None, flat=None, copy=0):
        if (offset is None) == (flat is None):
            raise errors.InvalidArgument(f'array "{name}": give offset, or flat')
        if not _tensors.is_tensor(buffer):
            raise errors.InvalidArgument(
                f'array "{name}": its buffer is a {type(buffer).__name__}, and no tensor'
            )
        self.name, self.buffer, self.copy = name, buffer, copy
        self.global_shape = tuple(map(int, global_shape))
        self.offset = None if offset is None else tuple(map(int, offset))
        self.flat = None if flat is None else int(flat)

    def place(self):
        """What the library is given behind the tensor."""
        order = _tensors.order_of(self.buffer) if self.flat is None else ()
        return (self.global_shape, self.offset, self.flat, order or None, self.copy)


class Arrays:
    """Those of one call, by name."""

    def __init__(self, arrays, tensors):
        """`tensors`: those of the items, by name."""
        self._by_name = {}
        for array in arrays:
            _items.check_name(array.name)
            if array.name in self._by_name or array.name in tensors:
                raise errors.InvalidArgument(f'array "{array.name}": this name is there twice')
            self._by_name[array.name] = array

    def __bool__(self):
        return bool(self._by_name)

    def __contains__(self, name):
        return name in self._by_name

    def tensors(self):
        return {name: array.buffer for name, array in self._by_name.items()}

    def places(self):
        return {name: array.place() for name, array in self._by_name.items()}

    def nbytes(self):
        return sum(array.buffer.nbytes for array in self._by_name.values())

    def check_writable(self):
        for name, array in self._by_name.items():
            if not _tensors.is_writable(array.buffer):
                problem = _tensors.why_not_writable(array.buffer) or "it has gaps"
                raise errors.InvalidArgument(
                    f'restore: array "{name}" cannot be filled: {problem}'
                )
