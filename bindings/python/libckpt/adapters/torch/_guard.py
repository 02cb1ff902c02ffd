"""Guard: each step of an optimizer first lets the captures of guarding sessions end.

The tensors of a guarded optimizer may be those of another one, too: of the next phase of a
training, for instance, while the first one is still a variable. So the step of any optimizer waits.

The session keeps tensors and storages that the trainer drops, but a storage that is resized gives
its memory back at once, even while it is held. So the functions that resize wait, too, and so does
`set_`, which else would count as a write to what is captured. So do writes to distributed tensors
that torch does not count. All of these wait only for a capture that reads their memory: FSDP2
resizes other memory in each layer of each forward pass.
"""

import functools
import weakref

import torch
from torch.optim import Optimizer, optimizer as _optimizer

from libckpt.adapters.torch import _distributed, _unseen_writes
from libckpt.adapters.torch._guarded_memory import GuardedMemory, by_address, tensors_of

_guards = weakref.WeakSet()
_RESIZING = ((torch.UntypedStorage, "resize_"), (torch.Tensor, "resize_"),
             (torch.Tensor, "resize_as_"), (torch.Tensor, "set_"))  # fmt: skip


class Guard:
    """The guarded optimizers of one session; `before_step(optimizer)` is called for any."""

    def __init__(self, registration, before_step):
        self.optimizers = []  # Weak references.
        self._before_step = before_step
        self._hooks = []
        self._replayed = set()  # Addresses that the replays of a CUDA graph write, unasked.
        self._memory = GuardedMemory()
        self._registration = weakref.ref(registration)  # Which has the guard.
        _replace_functions_of_torch()
        _unseen_writes.listen(_before_write)
        _guards.add(self)

    def add(self, optimizer):
        self.optimizers.append(weakref.ref(optimizer))
        # One that does not inherit from torch's calls only its own hooks.
        self._hooks.append(
            optimizer.register_step_pre_hook(lambda given, *_: self._before_step(given))
        )

    def may_read(self):
        registration = self._registration()
        return registration is not None and registration.mutations.memory is not None

    def finish_reading(self, addresses):
        """When it returns, the running capture has left the storages that begin there."""
        registration = self._registration()
        if registration is not None:
            registration.finish_reading(addresses)

    def remove(self):
        _guards.discard(self)
        for hook in self._hooks:
            hook.remove()

    def leave_to_graph(self, optimizer):
        """Its update was recorded, and the replays will not ask: it is guarded no longer."""
        self.optimizers = [each for each in self.optimizers if each() is not optimizer]
        for tensors in tensors_of(optimizer):
            own = map(_distributed.memory_of, tensors)
            self._replayed.update(tensor.data_ptr() for tensor in own)

    def ranges(self):
        """Bytes by address of what only guarded steps change. The very same dictionary as before
        when all of it lies where it lay; it is not to be changed."""
        ranges = self._memory.ranges(self.optimizers)
        if not self._replayed:
            return ranges
        return {a: size for a, size in ranges.items() if a not in self._replayed}

    def tensors(self):
        """The same tensors by address."""
        return by_address(self.optimizers)


@functools.cache
def _replace_functions_of_torch():
    """Once: those that step, and those that resize."""
    _optimizer.register_optimizer_step_pre_hook(_before_any_step)
    for kind, name in _RESIZING:
        setattr(kind, name, _after_captures(getattr(kind, name)))


def _before_any_step(optimizer, *_):
    for guard in list(_guards):
        guard._before_step(optimizer)


def _after_captures(stock):
    @functools.wraps(stock)
    def resize(self, *arguments, **options):
        _finish_reading([self])
        return stock(self, *arguments, **options)

    return resize


def _before_write(tensors):
    _finish_reading(tensors)


def _finish_reading(owners):
    """Called for each, a tensor or a storage, before its memory is changed."""
    guards = [guard for guard in list(_guards) if guard.may_read()]
    if guards:
        addresses = [_address_of(owner) for owner in owners]
        for guard in guards:
            guard.finish_reading(addresses)


def _address_of(owner):
    """Where its storage begins; None: it may lie anywhere."""
    try:
        if isinstance(owner, torch.Tensor):
            owner = _distributed.memory_of(owner).untyped_storage()
        return owner.data_ptr()
    except (RuntimeError, NotImplementedError):  # A sparse tensor has none, say.
        return None


def optimizer_of(given):
    """The optimizer whose step calls hooks: `given`, or the one that it is a wrapper of.

    accelerate's wrapper inherits from Optimizer without its constructor, so that it has the method
    that registers a hook, and nowhere to keep one.
    """
    optimizer = given
    while optimizer is not None and not _takes_hooks(optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


def _takes_hooks(optimizer):
    if isinstance(optimizer, Optimizer) and not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        return False
    return callable(getattr(optimizer, "register_step_pre_hook", None))
