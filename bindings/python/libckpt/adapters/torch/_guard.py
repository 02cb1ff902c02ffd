"""Guard: each step of an optimizer first lets the captures of guarding sessions end.

The tensors of a guarded optimizer may be those of another one, too: of the next phase of a
training, for instance, while the first one is still a variable. So the step of any optimizer waits.
"""

import weakref

from torch.optim import Optimizer, optimizer as _optimizer

from libckpt.adapters.torch import _resizing
from libckpt.adapters.torch._guarded_memory import GuardedMemory, tensors_of

_guards = weakref.WeakSet()
_handles = []


class Guard:
    """The guarded optimizers of one session; `before_step(optimizer)` is called for any."""

    def __init__(self, registration, before_step):
        self.optimizers = []  # Weak references.
        self._before_step = before_step
        self._hooks = []
        self._replayed = set()  # Addresses that the replays of a CUDA graph write, unasked.
        self._memory = GuardedMemory()
        _guards.add(self)
        if not _handles:
            _handles.append(_optimizer.register_optimizer_step_pre_hook(_before_any_step))
        _resizing.watch(registration)

    def add(self, optimizer):
        self.optimizers.append(weakref.ref(optimizer))
        # One that does not inherit from torch's calls only its own hooks.
        self._hooks.append(
            optimizer.register_step_pre_hook(lambda given, *_: self._before_step(given))
        )

    def remove(self):
        _guards.discard(self)
        for hook in self._hooks:
            hook.remove()

    def leave_to_graph(self, optimizer):
        """Its update was recorded, and the replays will not ask: it is guarded no longer."""
        self.optimizers = [each for each in self.optimizers if each() is not optimizer]
        for tensors in tensors_of(optimizer):
            self._replayed.update(tensor.data_ptr() for tensor in tensors)

    def ranges(self):
        """Bytes by address of what only guarded steps change. The very same dictionary as before
        when all of it lies where it lay; it is not to be changed."""
        ranges = self._memory.ranges(self.optimizers)
        if not self._replayed:
            return ranges
        return {a: size for a, size in ranges.items() if a not in self._replayed}

    def tensors(self):
        """The same tensors by address."""
        return self._memory.tensors(self.optimizers)


def _before_any_step(optimizer, *_):
    for guard in list(_guards):
        guard._before_step(optimizer)


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
