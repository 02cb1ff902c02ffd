"""Staging: a copy of a state dict in host memory, which training no longer changes.

The memory is used again: to get it anew for each save takes longer than the copy. While a save
still reads one set of buffers the next save takes the other; a third one that runs at the same time
gets memory of its own.
"""

import copy
import weakref

import torch

SETS = 2
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class Staging:
    def __init__(self):
        self._sets = [_Buffers() for _ in range(SETS)]

    def stage(self, state_dict):
        free = [buffers for buffers in self._sets if not buffers.are_in_use()]
        buffers = free[0] if free else _Buffers()
        buffers.begin()
        staged = _staged(state_dict, buffers)
        buffers.end()
        return staged

    def close(self):
        self._sets = [_Buffers() for _ in range(SETS)]


class _Buffers:
    """Host memory for the tensors of one state dict, in their order in it."""

    def __init__(self):
        self._kept, self._given = [], []
        self._count, self._gpus = 0, set()

    def are_in_use(self):
        return any(given() is not None for given in self._given)

    def begin(self):
        self._count, self._given, self._gpus = 0, [], set()

    def end(self):
        del self._kept[self._count :]
        for gpu in self._gpus:
            torch.cuda.current_stream(gpu).synchronize()

    def copy_of(self, tensor):
        """The tensor's values in a tensor whose death sets the buffer free."""
        given = self._buffer_like(tensor).detach()
        is_on_gpu = tensor.device.type == "cuda"
        given.copy_(tensor.detach(), non_blocking=is_on_gpu)
        if is_on_gpu:
            self._gpus.add(tensor.device)
        self._given.append(weakref.ref(given))
        return given

    def _buffer_like(self, tensor):
        at, self._count = self._count, self._count + 1
        known = self._kept[at] if at < len(self._kept) else None
        if known is not None and known.dtype == tensor.dtype and known.shape == tensor.shape:
            return known
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu",
                           pin_memory=tensor.device.type == "cuda")  # fmt: skip
        self._kept[at : at + 1] = [made]
        return made


def _staged(value, buffers):
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _staged_tensor(value, buffers)
    if kind is dict:
        return {key: _staged(part, buffers) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind(_staged(part, buffers) for part in value)
    if isinstance(value, dict):  # An OrderedDict, or one with a way to be made of its own.
        made = copy.copy(value)
        for key, part in value.items():
            made[key] = _staged(part, buffers)
        return made
    return copy.deepcopy(value)  # As stock DCP does with objects, and with tensors in them.


def _staged_tensor(tensor, buffers):
    local = getattr(tensor, "_local_tensor", None)
    if type(tensor).__name__ == "DTensor" and type(local) in (torch.Tensor, torch.nn.Parameter):
        with torch.no_grad():
            made = tensor.detach()
        made._local_tensor = buffers.copy_of(local)
        return made
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if is_plain and tensor.layout is torch.strided and not tensor.is_quantized:
        return buffers.copy_of(tensor)
    return copy.deepcopy(tensor)  # One that is made of others, such as a ShardedTensor.
