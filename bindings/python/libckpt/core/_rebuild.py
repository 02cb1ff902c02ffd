"""Rebuilder: puts items together again from a structure and the tensors that were restored.

The structure is what items.Flattener made: of each part, what it was.
"""

import base64
import collections
import pickle

from libckpt.core import _frameworks, _kinds, _signals
from libckpt.errors import CheckpointError, Corruption, InvalidArgument, Unsupported

ALLOW = "open the session with allow_pickle=True if you trust its origin"


class Rebuilder:
    def __init__(self, tensors, members, allow_pickle=False):
        self.tensors = tensors
        self.members = members
        self.allow_pickle = allow_pickle
        self._item = ""

    def rebuild_item(self, name, node):
        self._item = name
        return self.rebuild(node)

    def rebuild(self, node):
        (kind, value), *_ = node.items()
        return _REBUILD[kind](self, value)

    def archive(self, name):
        adapter = _frameworks.archive_adapter()
        return adapter.load_archive(name, self.members[name], self.allow_pickle)

    def optimizer_state(self, parts):
        away, node = parts
        return _frameworks.archive_adapter().by_numbers(self.rebuild(node), away)

    def of_kind(self, parts):
        kind, node = parts
        try:
            return _kinds.make(kind, self.rebuild(node))
        except CheckpointError as error:
            raise type(error)(f'saved item "{self._item}": {error}') from error
        except Exception as error:  # The class of an enumeration may be anybody's.
            _signals.raise_of_handler(error)
            raise InvalidArgument(
                f'saved item "{self._item}": a {kind} cannot be made again here ({error!r})'
            ) from error

    def unpickled(self, value):
        if not self.allow_pickle:
            raise Unsupported(
                f'saved item "{self._item}" holds a pickle, which runs what it was made to run: '
                f"{ALLOW}"
            )
        try:
            return pickle.loads(base64.b64decode(value))
        except Exception as error:  # Unpickling may raise anything.
            _signals.raise_of_handler(error)
            raise InvalidArgument(
                f'saved item "{self._item}" cannot be unpickled here ({error!r}): its classes '
                "and functions must be importable under the same names"
            ) from error


# The functions that rebuild a node's value, by the kind that _items.Flattener gave the node.
_REBUILD = {
    "t": lambda self, name: self.tensors[name],
    "a": Rebuilder.archive,
    "n": lambda self, node: self.rebuild(node).item(),  # The number that was in a tensor.
    "s": lambda self, node: self.rebuild(node),  # From an owner's state_dict().
    "g": Rebuilder.optimizer_state,
    "v": lambda self, value: value,
    "i": lambda self, text: int(text, 16),
    "f": lambda self, text: float(text),
    "b": lambda self, text: base64.b64decode(text),
    "d": lambda self, parts: {key: self.rebuild(part) for key, part in parts.items()},
    "m": lambda self, pairs: {self.rebuild(key): self.rebuild(part) for key, part in pairs},
    "o": lambda self, node: collections.OrderedDict(self.rebuild(node)),
    "e": lambda self, parts: collections.defaultdict(*map(self.rebuild, parts)),
    "l": lambda self, parts: [self.rebuild(part) for part in parts],
    "u": lambda self, parts: tuple(self.rebuild(part) for part in parts),
    "k": Rebuilder.of_kind,
    "p": Rebuilder.unpickled,
}


class Placeholder:
    """Stands for a tensor, or for what is not looked at before it is restored."""

    def __init__(self, node=None):
        self.node = node or {}


class Outline(Rebuilder):
    """Puts items together before there are tensors, to find out whether they fit."""

    def __init__(self, allow_pickle):
        super().__init__({}, {}, allow_pickle)

    def rebuild(self, node):
        if "t" in node:
            return Placeholder(node)
        if "a" in node or "n" in node or ("p" in node and self.allow_pickle):
            return Placeholder()
        return self.rebuild(node["e"][1]) if "e" in node else super().rebuild(node)


def rebuild(structure, tensors, members, allow_pickle=False):
    """The items again, as plain values. A member that is not among `members` is left out."""
    return rebuilt_by(Rebuilder(tensors, members, allow_pickle), structure)


def outline(structure, allow_pickle=False):
    """The items, with a Placeholder for each tensor. Raises what rebuild would raise."""
    return rebuilt_by(Outline(allow_pickle), structure)


def rebuilt_by(rebuilder, structure):
    """The items as that Rebuilder makes them. Raises Corruption for a structure that is none."""
    try:
        return {name: rebuilder.rebuild_item(name, node) for name, node in structure.items()}
    except CheckpointError:
        raise
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise Corruption(f"the structure of the saved items is damaged: {error!r}") from error
