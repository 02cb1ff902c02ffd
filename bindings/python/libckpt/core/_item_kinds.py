"""Item kinds: items, or parts of one, that are neither tensors nor plain data."""

import contextlib

from libckpt.core import _frameworks, _tensors

PARAMETER, BUFFER, STATE = "parameter", "buffer", "state"  # Kinds of replicas.


class Member:
    """Marks an item, or a part of one, that is to be a file of its own in the checkpoint.

    `entries(name, allow_pickle)`: the contents of the file, by name of the entry its View.
    """

    def __init__(self, content):
        self.content = content


class Number:
    """A tensor of one element, which is a Python number once it is restored."""

    def __init__(self, tensor):
        self.tensor = tensor


def has_state(item):
    return callable(getattr(item, "state_dict", None)) and not isinstance(item, type)


def can_load(item):
    return callable(getattr(item, "load_state_dict", None)) and not isinstance(item, type)


def parts_of(name, value):
    """(name, part) of all that a dictionary, a list or a tuple holds; of anything else nothing."""
    if isinstance(value, dict):
        pairs = value.items()
    else:
        pairs = enumerate(value if isinstance(value, (list, tuple)) else ())
    return [(f"{name}.{key}", part) for key, part in pairs]


def has_tensor(value):
    """Whether there is one in it, at any depth of containers."""
    parts = tuple(value) if isinstance(value, (set, frozenset)) else value
    return _tensors.is_tensor(value) or any(has_tensor(part) for _, part in parts_of("", parts))


def owners_of(items, for_capture=False):
    """The handlers of the owners among the items, for each framework."""
    return [adapter.owners(items, for_capture) for adapter in _frameworks.adapters()]


@contextlib.contextmanager
def state_made(items):
    """While it lasts, owners have the state that a restore is to fill; for good unless it fails."""
    undone = [undo for owners in owners_of(items) for undo in owners.make_state()]
    try:
        yield
    except BaseException:
        for undo in undone:
            undo()
        raise


def parts_in(pairs, is_one):
    """(name, part) of all that are of the kind, at any depth of containers."""
    for name, item in pairs:
        if is_one(item):
            yield name, item
        else:
            yield from parts_in(parts_of(name, item), is_one)
