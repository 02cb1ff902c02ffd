"""Unseen writes: those to distributed tensors that torch does not count.

A function of torch that writes a list of distributed tensors (`torch._foreach_add_`) counts no
write of them. Torch asks a table of handlers what to do with each operator of a distributed tensor.
The handlers here say first which tensors will be written, and then have torch do what it does.
"""

import threading

import torch

from libckpt.adapters.torch import _distributed

FAMILIES = ("_foreach_", "_fused_")

_lock = threading.RLock()  # Held where a handler is not in its place.
_listeners = []  # Called with the tensors before they are written.
_answers = []  # The one trial has them.


def are_noticed(mesh):
    """Whether such writes are noticed from now on. It is tried once, with a tensor on this mesh."""
    if not _answers:
        _answers.append(_install() and _try(mesh))
    return _answers[0]


def _install():
    from torch.distributed.tensor import DTensor

    handlers = getattr(getattr(DTensor, "_op_dispatcher", None), "_custom_op_handlers", None)
    if not isinstance(handlers, dict):
        return False  # This torch has no such table.
    for operator in _writing_operators():
        handlers.setdefault(operator, _Handler(handlers, operator))
    return True


def _try(mesh):
    from torch.distributed.tensor import DTensor, Replicate

    whole = torch.zeros(1, device=mesh.device_type)
    tried = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    heard = []
    hear = heard.extend
    listen(hear)
    try:
        with torch.no_grad():
            torch._foreach_zero_([tried])
    finally:
        _listeners.remove(hear)
    return any(tensor is tried for tensor in heard)


def listen(call):
    """call(tensors) is called before distributed tensors are written in such a way."""
    if call not in _listeners:
        _listeners.append(call)


def _writing_operators():
    for name in dir(torch):
        if name.startswith(FAMILIES) and name.endswith("_"):
            packet = getattr(torch.ops.aten, name, None)
            yield from (getattr(packet, each) for each in packet.overloads()) if packet else ()


class _Handler:
    def __init__(self, handlers, operator):
        self._handlers = handlers
        self._written_arguments = [
            place for place, argument in enumerate(operator._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]  # fmt: skip

    def __call__(self, operator, arguments, options):
        tensors = [
            tensor
            for place in self._written_arguments if place < len(arguments)
            for tensor in arguments[place] if _distributed.is_distributed(tensor)
        ]  # fmt: skip
        for listener in list(_listeners):
            listener(tensors)
        with _lock:
            self._handlers.pop(operator)
            try:
                return operator(*arguments, **options)
            finally:
                self._handlers[operator] = self
