"""Guarded memory: where the tensors lie that only guarded optimizers change, asked at each save."""

import array

import torch

from libckpt import _native
from libckpt.adapters.torch import _distributed, _unseen_writes
from libckpt.core import _views

# Bytes of state for each byte of a parameter, of the usual optimizers.
STATE_OF = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "SGD": 1, "RMSprop": 2,
            "Adagrad": 1, "Adadelta": 2, "Rprop": 2, "Lion": 1}  # fmt: skip
STATE_MORE = ("amsgrad", "centered")  # With each of these options one more.
STATE_BYTES_EACH = 1024  # Step counters, what lies between tensors, and their long names.


class GuardedMemory:
    """For the optimizers of one guard, given as weak references."""

    def __init__(self):
        self._memory = None  # As _native.memory_of returned it.
        self._ranges = {}

    def ranges(self, optimizers):
        """Bytes by address, of parameters and state. The very same dictionary as before when all of
        them lie where they lay; it is not to be changed."""
        parts = []
        for optimizer in hooked(optimizers):
            for group in optimizer.param_groups:
                parts.extend(group["params"])
            for state in optimizer.state.values():
                if isinstance(state, dict):
                    parts.extend(state.values())
        if any(name == _distributed.CLASS for name in {type(part).__name__ for part in parts}):
            parts = [memory for part in parts for memory in _memory_of(part)]
        if not parts:
            self._memory, self._ranges = None, {}
            return self._ranges
        memory = _native.memory_of(_views.exchange_api(), torch.Tensor, parts)
        if memory is None:  # This torch, or a kind of tensor, does not give it in one call.
            self._memory, self._ranges = None, ranges_one_by_one(optimizers)
        elif memory != self._memory:
            numbers = array.array("Q", memory)
            self._memory = memory
            self._ranges = dict(zip(numbers[::2], numbers[1::2], strict=True))
            self._ranges.pop(0, None)  # Tensors without memory.
        return self._ranges


def by_address(optimizers):
    """The tensors of these optimizers, by the address of their memory."""
    parts = (tensors for optimizer in hooked(optimizers) for tensors in tensors_of(optimizer))
    return {
        memory.data_ptr(): tensor
        for tensors in parts for tensor in tensors for memory in _memory_of(tensor)
    }  # fmt: skip


def _memory_of(part):
    """The tensor whose memory it is; none, where not all writes to a distributed one are seen."""
    if not _distributed.is_distributed(part):
        return [part]
    is_seen = _unseen_writes.are_noticed(part.device_mesh)
    return [_distributed.local_of(part)] if is_seen else []


def ranges_one_by_one(optimizers):
    found = by_address(optimizers).items()
    return {a: _distributed.memory_of(tensor).nbytes for a, tensor in found if a}


def hooked(optimizers):
    """The optimizers that are alive and whose steps call our hook first."""
    for reference in optimizers:
        optimizer = reference()
        if optimizer is not None and not may_be_replayed(optimizer) and calls_hooks(optimizer):
            yield optimizer


def tensors_of(optimizer):
    """All that its step may change, in lists."""
    for group in optimizer.param_groups:
        yield group["params"]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            yield [part for part in state.values() if isinstance(part, torch.Tensor)]


def may_be_replayed(optimizer):
    """Whether its step may lie in a CUDA graph, whose replays call no hook of an optimizer."""
    return any(group.get("capturable") for group in optimizer.param_groups)


def calls_hooks(optimizer):
    """Whether its step still calls the hooks that are registered with it. torch.compile of some
    versions takes what calls them off the optimizers of torch, for good."""
    kind, base = type(optimizer), torch.optim.Optimizer
    step, wrap = getattr(kind, "step", None), getattr(base, "profile_hook_step", None)
    if wrap is None or not getattr(step, "hooked", False):
        return True  # It has a way of its own.
    code = wrap(step).__code__
    while step is not None and getattr(step, "__code__", None) is not code:
        step = getattr(step, "__wrapped__", None)
    return step is not None


def state_bytes(optimizers):
    """The bytes that the state of these optimizers will need once each has made a step."""
    total = 0
    for optimizer in optimizers:
        if optimizer is None or optimizer.state:
            continue
        usual = STATE_OF.get(type(optimizer).__name__, 2)
        for group in optimizer.param_groups:
            factor = usual + sum(bool(group.get(option)) for option in STATE_MORE)
            for parameter in group["params"]:
                if parameter.requires_grad:
                    total += factor * _distributed.memory_of(parameter).nbytes + STATE_BYTES_EACH
    return total
