"""Guard: each step of an optimizer first lets the captures of guarding sessions end.

The tensors of a guarded optimizer may be those of another one, too: of the next phase of a
training, for instance, while the first one is still a variable. So the step of any optimizer waits.

The session keeps tensors and storages that the trainer drops, but a storage that is resized gives
its memory back at once, even while it is held. So the functions that resize wait, too, and so do
`set_` and `swap_tensors`, which else would count as writes to what is captured. So do writes to
distributed tensors that torch does not count. All of these wait only for a capture that reads their
memory: FSDP2 resizes other memory in each layer of each forward pass.

A storage that is shared with another process moves to shared memory. A queue of
torch.multiprocessing does that in a thread of its own, at any time. So no save reads addresses
meanwhile.
"""

import contextlib
import functools
import os
import weakref

import torch
from torch.optim import Optimizer, optimizer as _optimizer

from libckpt.adapters.torch import _distributed, _unseen_writes
from libckpt.adapters.torch._guarded_memory import GuardedMemory, by_address, tensors_of

_guards = weakref.WeakSet()
_STORAGE, _TENSOR = torch.UntypedStorage, torch.Tensor
# Functions of torch, and how many of their arguments lose their memory.
_RESIZING = ((_STORAGE, "resize_", 1), (_STORAGE, "_resize_with_addr_", 1), (_TENSOR, "resize_", 1),
             (_TENSOR, "resize_as_", 1), (torch, "resize_as_", 1), (_TENSOR, "set_", 1),
             (torch.utils, "swap_tensors", 2))  # fmt: skip
_MOVING = ((_STORAGE, "_share_fd_cpu_", 1), (_STORAGE, "_share_filename_cpu_", 1),
           (_STORAGE, "_set_cdata", 1), (_STORAGE, "_swap_data_ptr_", 2))  # fmt: skip


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

    def no_save(self):
        """A save of another thread does not read addresses meanwhile."""
        registration = self._registration()
        if registration is None or registration.process != os.getpid():
            return contextlib.nullcontext()  # In a forked process nobody gives the lock back.
        return registration.mutations.addresses

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
    """Once: those that step, those that resize, and those that give a storage other memory."""
    _optimizer.register_optimizer_step_pre_hook(_before_any_step)
    for functions, replacement in ((_RESIZING, _after_captures), (_MOVING, _between_saves)):
        for owner, name, count in functions:
            if (stock := getattr(owner, name, None)) is not None:  # Not each torch has all.
                setattr(owner, name, replacement(stock, count))


def _before_any_step(optimizer, *_):
    for guard in list(_guards):
        guard._before_step(optimizer)


def _after_captures(stock, count=1):
    @functools.wraps(stock)
    def resize(*arguments, **options):
        _finish_reading([*arguments, *options.values()][:count])
        return stock(*arguments, **options)

    return resize


def _between_saves(stock, count=1):
    wait_and_move = _after_captures(stock, count)

    @functools.wraps(stock)
    def move(*arguments, **options):
        with contextlib.ExitStack() as held:
            for guard in sorted(_guards, key=id):  # In one order, as each is a lock.
                held.enter_context(guard.no_save())
            return wait_and_move(*arguments, **options)

    return move


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
