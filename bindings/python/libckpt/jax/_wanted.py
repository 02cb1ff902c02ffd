"""Wanted: the boxes of each array that the devices of this process are to hold, and where their
bytes come from.

    like        what the trainer wants: shapes, types, shardings
    specs       what the checkpoint has: shapes, types, cells
    cells       those that overlap a wanted box, each with the part of it that is needed
"""

import jax
import numpy

from libckpt import errors
from libckpt.jax import _boxes, _leaves


class Wanted:
    """One array."""

    def __init__(self, name, leaf, spec):
        self.name, self.spec, self._leaf = name, spec, leaf
        self._dtype = _leaves.dtype_of(spec.dtype)
        self._devices = {}  # The box of each device here; of an array of numpy that of all of it.
        self._sharding = None
        if isinstance(leaf, numpy.ndarray):
            self._devices[None] = tuple((0, length) for length in spec.shape)
        else:
            self._sharding = sharding_of(name, leaf, len(spec.shape))
            indices = self._sharding.addressable_devices_indices_map(spec.shape)
            self._devices = {d: _boxes.box_of(i, spec.shape) for d, i in indices.items()}
        boxes = dict.fromkeys(self._devices.values())
        self.cells = {}  # By name: its box, and the one around all that is needed of it.
        for cell in _boxes.cells(spec.cuts, spec.shape):
            parts = [part for box in boxes if (part := _boxes.common(box, cell)) is not None]
            if parts:
                self.cells[_boxes.name_of(name, cell, spec.cuts)] = (cell, _boxes.hull(parts))

    def room(self, box):
        return _leaves.empty(_boxes.shape_of(box), self._dtype)

    def value(self, found):
        """The array; `found`: by name of its cells, (their box, their content)."""
        made = {}
        for box in self._devices.values():
            if box not in made:
                made[box] = self._content(box, found)
        if self._sharding is None:
            return made[self._devices[None]]
        if is_anywhere(self._leaf):
            (value,) = (jax.device_put(whole) for whole in made.values())
            self._check_type(value)
        else:
            kind = self._sharding.memory_kind
            parts = [
                jax.device_put(made[box], jax.sharding.SingleDeviceSharding(d, memory_kind=kind))
                for d, box in self._devices.items()
            ]
            self._check_type(*parts)
            value = jax.make_array_from_single_device_arrays(
                self.spec.shape, self._sharding, parts, dtype=self._dtype
            )
        return value if self.spec.key is None else as_keys(value, self.spec.key, self._leaf)

    def _check_type(self, *parts):
        if any(part.dtype != self._dtype for part in parts):
            raise errors.InvalidArgument(
                f'restore: array "{self.name}" was saved as {self._dtype}, of which JAX makes '
                f"{parts[0].dtype} here: set jax_enable_x64, as in the run that saved it"
            )

    def _content(self, box, found):
        for there, content in found.values():
            if there == box:
                return content
        made = self.room(box)
        for there, content in found.values():
            part = _boxes.common(box, there)
            if part is not None:
                made[_boxes.slices_of(part, box)] = content[_boxes.slices_of(part, there)]
        return made


def is_anywhere(leaf):
    """Whether no device was asked for: then JAX moves it to where the others are that it is used
    with, as it does with what jax.numpy makes."""
    is_given = getattr(leaf, "sharding", None) is not None  # A number has none.
    return not is_given or (isinstance(leaf, jax.Array) and not leaf.committed)


def as_keys(data, implementation, like):
    keys = jax.random.wrap_key_data(data, impl=implementation)
    if is_anywhere(like) or keys.sharding == like.sharding:
        return keys
    return jax.device_put(keys, like.sharding)


def sharding_of(name, leaf, dimensions):
    """That of the array's numbers, of which a key has a dimension more."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        if jax.process_count() > 1:
            raise errors.InvalidArgument(
                f'restore: array "{name}" of `like` has no sharding, and there are '
                f"{jax.process_count()} processes: give jax.ShapeDtypeStruct(shape, dtype, "
                "sharding=...)"
            )
        return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    if not _leaves.is_key(leaf):
        return sharding
    if isinstance(leaf, jax.Array):
        return _leaves.data_of(leaf).sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        missing = [None] * (dimensions - len(sharding.spec))
        return sharding.update(spec=jax.sharding.PartitionSpec(*sharding.spec, *missing))
    return sharding


NUMBERS = {bool: jax.numpy.bool_, int: jax.numpy.integer, float: jax.numpy.floating,
           complex: jax.numpy.complexfloating}  # fmt: skip


def _is_number_of(leaf, dtype):
    """As a step of 0, which is an array once a compiled function has added 1."""
    kind = NUMBERS.get(type(leaf))
    return kind is not None and jax.numpy.issubdtype(_leaves.dtype_of(dtype), kind)


def check(name, leaf, spec):
    """Raises InvalidArgument for an array that the saved one is not."""
    if isinstance(leaf, numpy.ndarray):
        shape, dtype = leaf.shape, leaf.dtype.name
    elif _leaves.is_key(leaf):
        key = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        shape, dtype = key.shape, key.dtype.name
    elif hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        shape, dtype = leaf.shape, leaf.dtype.name
    elif _is_number_of(leaf, spec.dtype):
        shape, dtype = (), spec.dtype
    else:
        raise errors.InvalidArgument(
            f'restore: "{name}" is a {type(leaf).__name__} in `like` and was saved as an array, '
            f"{spec.in_words()}: give jax.ShapeDtypeStruct"
        )
    if (tuple(shape), dtype) != (spec.shape, spec.dtype):
        raise errors.InvalidArgument(
            f'restore: array "{name}" is {dtype} {list(shape)} here and {spec.in_words()} there. '
            "Has the model changed? With strict=False it stays as it is"
        )
    if _leaves.is_key(leaf) != (spec.key is not None):
        raise errors.InvalidArgument(
            f'restore: array "{name}" has PRNG keys on one side only: {spec.in_words()} was saved'
        )


def placed(name, leaf, value):
    """A plain value that was saved, where `like` has an array or a number."""
    if not isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        return value
    key = value.get("key") if isinstance(value, dict) else None
    data = value["data"] if key else numpy.asarray(value)
    wanted = leaf.shape if key is None else (*leaf.shape, *data.shape[len(leaf.shape) :])
    is_array = key is None and isinstance(value, (numpy.ndarray, numpy.generic))
    if data.shape != tuple(wanted) or (is_array and data.dtype.name != leaf.dtype.name):
        raise errors.InvalidArgument(
            f'restore: array "{name}" is {leaf.dtype.name} {list(leaf.shape)} here and '
            f"{data.dtype.name} {list(data.shape)} there. With strict=False it stays as it is"
        )
    if key is None:
        data = data.astype(leaf.dtype, copy=False)
    if is_anywhere(leaf):
        made = jax.device_put(data)
    else:
        made = jax.make_array_from_callback(
            data.shape, sharding_of(name, leaf, data.ndim), lambda index: data[index]
        )
    return made if key is None else as_keys(made, key, leaf)
