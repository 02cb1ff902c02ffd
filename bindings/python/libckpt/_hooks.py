"""Hooks: the step of any optimizer first lets the captures of guarding sessions end.

The tensors of a guarded optimizer may be those of another one, too: of the next phase of a
training, for instance, while the first one is still a variable.
"""

import weakref

from libckpt import errors

_sessions = weakref.WeakSet()
_handles = []


def watch(session):
    """From now on each step of an optimizer calls the session's before_step."""
    _sessions.add(session)
    if not _handles:
        from torch.optim import optimizer

        _handles.append(optimizer.register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer, *_):
    for session in list(_sessions):
        session._before_step(optimizer)


def stepping(given):
    """The optimizer whose step calls hooks: `given`, or the one that it is a wrapper of.

    accelerate's wrapper inherits from Optimizer without its constructor, so that it has the method
    that registers a hook, and nowhere to keep one.
    """
    optimizer = given
    while optimizer is not None and not _takes_hooks(optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    if optimizer is None:
        raise errors.InvalidArgument(
            f"guard: {type(given).__name__} was given: an optimizer of torch is wanted, which has "
            "register_step_pre_hook"
        )
    return optimizer


def _takes_hooks(optimizer):
    from torch.optim import Optimizer

    if isinstance(optimizer, Optimizer) and not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        return False
    return callable(getattr(optimizer, "register_step_pre_hook", None))
