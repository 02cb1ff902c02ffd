"""Capture: which cells of which arrays this process captures, and where their bytes lie.

All processes know the sharding of each array. One of the processes that hold a cell captures it:
that with the least to capture so far, in the order of the tree. All find the same, without a word.
So processes that hold the same (data parallelism) share it out.
"""

import json

import jax
import numpy

from libckpt import errors
from libckpt.core._arrays import Array
from libckpt.jax import _boxes, _leaves

ITEM = "jax"  # The item that says what the arrays are.


class Capture:
    """Makes items and arrays of the tree of one save after the other."""

    def __init__(self):
        self._seen = None  # Name, shape, type and sharding of each array of the newest tree.
        self._own = {}  # By name of the array: (device, name of the cell, its box) of own cells.
        self._texts = {}

    def of(self, tree):
        """(items, a generator of arrays, which waits for their values)."""
        leaves, _ = _leaves.named(tree)
        paths = {"paths": json.dumps(leaves.paths)} if leaves.paths else {}
        arrays = {name: leaf for name, leaf in leaves.items() if _leaves.is_global(leaf)}
        plain = {name: _on_host(leaf) for name, leaf in leaves.items() if name not in arrays}
        seen = [(name, a.shape, a.dtype, a.sharding) for name, a in arrays.items()]
        if seen != self._seen:
            self._seen = None
            self._plan(arrays)
            self._seen = seen
        return {ITEM: {**self._texts, **paths, "leaves": plain}}, self._parts(arrays)

    def _plan(self, arrays):
        specs, own = {}, {}
        loads = [0] * jax.process_count()
        for name, leaf in arrays.items():
            data = _leaves.data_of(leaf)
            devices = {}  # By box, those that hold it.
            for device, index in data.sharding.devices_indices_map(data.shape).items():
                devices.setdefault(_boxes.box_of(index, data.shape), []).append(device)
            cuts = _boxes.cuts_of(name, devices, data.shape)
            specs[name] = _leaves.Spec(
                data.shape, data.dtype.name, cuts, _leaves.implementation(leaf)
            )
            own[name] = [
                (device, _boxes.name_of(name, box, cuts), box)
                for box in _boxes.cells(cuts, data.shape)
                for device in _captor(devices[box], loads, _boxes.shape_of(box), data.dtype)
            ]
        self._own = own
        self._texts = {
            "arrays": json.dumps({name: spec.parts() for name, spec in specs.items()}),
            "own": json.dumps([cell for cells in own.values() for _, cell, _ in cells]),
        }

    def _parts(self, arrays):
        """One Array for each own cell. Its memory is that of JAX, which gives it to no later
        computation while there is a view of it, donated or not. The core holds the view until the
        bytes are copied."""
        jax.block_until_ready(list(arrays.values()))
        held = []
        for name, leaf in arrays.items():
            data = _leaves.data_of(leaf)
            shards = {shard.device: shard.data for shard in data.addressable_shards}
            for device, cell, box in self._own[name]:
                held.append((cell, box, data.shape, shards[device]))
                if device.platform != "cpu":
                    shards[device].copy_to_host_async()
        for cell, box, shape, data in held:
            yield array_of(cell, box, shape, _dense(numpy.asarray(data)), is_constant=True)


def array_of(cell, box, shape, buffer, is_constant=False):
    """A part of the cell, or all of it; `shape` is that of the whole array."""
    content, behind = _leaves.stored(buffer)
    offset = (*(begin for begin, _ in box), *(0 for _ in behind))
    # With a number of its copy also the only cell of an array is a part, which any number of
    # processes reads.
    return Array(cell, content, global_shape=(*shape, *behind), offset=offset, copy=1,
                 may_go=True, is_constant=is_constant)  # fmt: skip


def _captor(devices, loads, shape, dtype):
    """The device whose process captures the cell, if that is this one; as a list."""
    processes = sorted({device.process_index for device in devices})
    captor = min(processes, key=lambda process: loads[process])
    loads[captor] += int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    if captor != jax.process_index():
        return []
    return [next(device for device in devices if device.process_index == captor)]


def _on_host(leaf):
    """The values of an array that is on this process only."""
    if not isinstance(leaf, jax.Array):
        return leaf
    value = _dense(numpy.asarray(_leaves.data_of(leaf)))
    return {"key": _leaves.implementation(leaf), "data": value} if _leaves.is_key(leaf) else value


def _dense(array):
    return array if array.flags.c_contiguous else array.copy(order="C")


def described(items):
    """(specs by name, names of own cells, leaves by name) of what a restore brought."""
    found = items.get(ITEM)
    if found is None:
        raise errors.InvalidArgument(
            "restore: the step was not saved by libckpt.jax: restore it as it was saved"
        )
    specs = {
        name: _leaves.Spec.from_parts(*parts) for name, parts in json.loads(found["arrays"]).items()
    }
    return specs, json.loads(found["own"]), found["leaves"]


def paths_in(items):
    """By name, the paths of leaves of which two would have one name."""
    return json.loads(items.get(ITEM, {}).get("paths", "{}"))
