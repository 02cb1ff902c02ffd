"""Distributed tensors: the part of one that this rank holds, as an array of the core.

FSDP2 (`fully_shard`) makes the parameters of a module such tensors, and optimizers make their state
for them alike. What is captured, and filled in place, is the local part.
"""

import math

import torch

from libckpt.errors import Unsupported


def is_distributed(value):
    # By name: to import the class takes a second, in programs that have no such tensor.
    return type(value).__name__ == "DTensor" and isinstance(value, torch.Tensor)


def local_of(tensor):
    """The memory of this rank's part."""
    with torch.no_grad():
        return tensor.to_local()


def memory_of(tensor):
    """The tensor itself, or the local part of a distributed one."""
    return local_of(tensor) if is_distributed(tensor) else tensor


def part_of(name, tensor):
    """(local tensor, where it lies: as Array.place() says)."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements, shape = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
    for placement in placements:
        _check(name, placement)
    local = local_of(tensor)
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # This rank has no part of it.
        return local, (shape, (0,) * len(shape), None, None, 0)
    local_shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if tuple(local.shape) != tuple(local_shape):
        raise Unsupported(
            f'tensor "{name}": its local part is {list(local.shape)}, and {list(local_shape)} of '
            f"{list(shape)} were expected here: save the local part as a libckpt.Array"
        )
    copy = 0  # Ranks that differ only where it is replicated hold the same part.
    for place, size, placement in zip(coordinate, mesh.shape, placements, strict=True):
        if placement.is_replicate():
            copy = copy * size + place
    if math.prod(local_shape) == 0:
        offset = (0,) * len(shape)  # Of no element no place is outside.
    return local, (shape, tuple(int(at) for at in offset), None, None, copy)


def _check(name, placement):
    if placement.is_partial():
        raise Unsupported(
            f'tensor "{name}": it is a sum that is not made yet ({placement}): call redistribute() '
            "with Replicate or Shard first"
        )
    if type(placement).__name__ not in ("Shard", "Replicate"):
        raise Unsupported(
            f'tensor "{name}": it is divided as {placement}, which libckpt does not know: save its '
            "local parts as libckpt.Array"
        )


def make_state(optimizer):
    """Gives an optimizer of such parameters the state that it has after a step, so that a restore
    finds its parts. Returns what undoes that; None: there was nothing to do."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    is_due = not optimizer.state and any(map(is_distributed, parameters))
    if not is_due or any(parameter.grad is not None for parameter in parameters):
        return None
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:  # So that the step changes no parameter.
        rate = group["lr"]
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
    return optimizer.state.clear
