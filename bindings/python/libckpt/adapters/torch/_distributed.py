"""Distributed tensors: the part of one that this rank holds, as an array of the core.

FSDP2 (`fully_shard`) makes the parameters of a module such tensors, and optimizers make their state
for them alike. The local part is captured, and filled in place.
"""

import contextlib
import inspect
import logging
import math

import torch

from libckpt.core import _signals
from libckpt.errors import Unsupported

logger = logging.getLogger("libckpt")


CLASS = "DTensor"

PLACES_MAX = 10_000
_places = {}  # Places of parts, as _place_of() says: each save asks for all of them again.


def is_distributed(value):
    # By name: to import the class takes a second, in programs that have no such tensor.
    return type(value).__name__ == CLASS and isinstance(value, torch.Tensor)


def local_of(tensor):
    """The memory of this rank's part."""
    with torch.no_grad():
        return tensor.to_local()


def memory_of(tensor):
    """The tensor itself, or the local part of a distributed one."""
    return local_of(tensor) if is_distributed(tensor) else tensor


def part_of(name, tensor):
    """(local tensor, where it lies: as Array.place() says)."""
    mesh, placements, shape = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
    local = local_of(tensor)
    coordinate = mesh.get_coordinate()
    where = (shape, tuple(local.shape), mesh.shape, coordinate and tuple(coordinate), placements)
    key = (*where, *map(type, placements))  # A class of someone else's may equal one of torch's.
    place = _places.get(key)
    if place is None:
        if len(_places) >= PLACES_MAX:
            _places.clear()
        place = _places[key] = _place_of(name, *where)
    return local, place


def _place_of(name, shape, own_shape, sizes, coordinate, placements):
    for placement in placements:
        _check(name, placement)
    if coordinate is None:  # This rank has no part of it.
        return shape, (0,) * len(shape), None, None, 0, 0
    ranges = _ranges_of(shape, sizes, coordinate, placements)
    if any(len(each) > 1 for each in ranges):
        raise Unsupported(
            f'tensor "{name}": divided as {placements}, this rank has several separate parts of '
            "it: save each as a libckpt.Array, or with torch.distributed.checkpoint and "
            "libckpt.dcp"
        )
    box = [each[0] if each else (0, 0) for each in ranges]
    local_shape = [end - begin for begin, end in box]
    if list(own_shape) != local_shape:
        raise Unsupported(
            f'tensor "{name}": its local part is {list(own_shape)}, and {local_shape} of '
            f"{list(shape)} were expected here: save the local part as a libckpt.Array"
        )
    copy, copies = 0, 1  # Ranks that differ only where it is replicated hold the same part.
    for place, size, placement in zip(coordinate, sizes, placements, strict=True):
        if placement.is_replicate():
            copy, copies = copy * size + place, copies * size
    # A part without elements is nowhere outside.
    offset = tuple(begin for begin, _ in box) if math.prod(local_shape) else (0,) * len(shape)
    return shape, offset, None, None, copy, copies


def _ranges_of(shape, sizes, coordinate, placements):
    """For each dimension, (begin, end) of each stretch of it that the rank at this place of the
    mesh has."""
    ranges = [[(0, length)] if length else [] for length in shape]
    for size, place, placement in zip(sizes, coordinate, placements, strict=True):
        if placement.is_replicate():
            continue
        # FSDP2 over tensor parallelism divides what each of `factor` others will have.
        factor = getattr(placement, "split_factor", 1)
        parts = _chunks(ranges[placement.dim], factor)
        ranges[placement.dim] = _joined(_chunks(part, size)[place] for part in parts)
    return ranges


def _chunks(ranges, count):
    """As torch.chunk divides it; the last of the `count` chunks may be smaller, or empty."""
    total = sum(end - begin for begin, end in ranges)
    length = -(-total // count)
    chunks, left = [], list(ranges)
    for _ in range(count):
        chunk, room = [], length
        while left and room:
            begin, end = left.pop(0)
            cut = min(end, begin + room)
            chunk.append((begin, cut))
            room -= cut - begin
            if cut < end:
                left.insert(0, (cut, end))
        chunks.append(chunk)
    return chunks


def _joined(parts):
    """The ranges of all parts; those that touch are one."""
    joined = []
    for begin, end in (each for part in parts for each in part):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _check(name, placement):
    if placement.is_partial():
        raise Unsupported(
            f'tensor "{name}": it is a sum that is not made yet ({placement}): call redistribute() '
            "with Replicate or Shard first"
        )
    if type(placement).__name__ not in ("Shard", "Replicate", "_StridedShard"):
        raise Unsupported(
            f'tensor "{name}": it is divided as {placement}, which libckpt does not know: save its '
            "local parts as libckpt.Array"
        )


def make_state(name, optimizer):
    """Gives an optimizer of such parameters the state that it has after a step, so that a restore
    finds its parts. Returns what undoes that; None: there was nothing to do.

    A parameter that was not trained has no state in a checkpoint: the restore takes it away again.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    is_due = not optimizer.state and any(map(is_distributed, parameters))
    if not is_due or any(parameter.grad is not None for parameter in parameters):
        return None
    options = [dict(group) for group in optimizer.param_groups]
    changed = [{k: v.clone() for k, v in group.items() if isinstance(v, torch.Tensor)}
               for group in options]  # fmt: skip
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        with _no_hooks(optimizer):
            _step_nowhere(optimizer)
    except Exception as error:  # It may want anything first.
        optimizer.state.clear()
        _signals.raise_of_handler(error)
        logger.warning(
            'libckpt: restore: optimizer "%s" (%s) could not make the step that gives its parts '
            "their places (%r): a checkpoint that has its state cannot be restored",
            name, type(optimizer).__name__, error,
        )  # fmt: skip
        return None
    finally:
        for parameter in parameters:
            parameter.grad = None
        for group, option, tensors in zip(optimizer.param_groups, options, changed, strict=True):
            for key, tensor in tensors.items():
                option[key].copy_(tensor)
            group.clear()
            group.update(option)
    return optimizer.state.clear


def _step_nowhere(optimizer):
    """A step that changes no parameter."""
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if rate is not None:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        optimizer.step(lambda: torch.zeros(()))
    else:
        optimizer.step()


@contextlib.contextmanager
def _no_hooks(optimizer):
    """The hooks of the user's are for steps of the training."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = {name: vars(optimizer)[name] for name in names if name in vars(optimizer)}
    for name, own in hooks.items():
        setattr(optimizer, name, type(own)())
    try:
        yield
    finally:
        for name, own in hooks.items():
            setattr(optimizer, name, own)
