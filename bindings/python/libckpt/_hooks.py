"""Hooks: the step of any optimizer first lets the captures of guarding sessions end.

The tensors of a guarded optimizer may be those of another one, too: of the next phase of a
training, for instance, while the first one is still a variable.
"""

import weakref

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
