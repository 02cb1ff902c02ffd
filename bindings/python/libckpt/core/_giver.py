"""Giver: puts items together again from a structure and the tensors that were restored.

The structure is what items.Taker made: of each part, what it was.
"""

import base64
import collections
import pickle

from libckpt.core import _frameworks, _kinds
from libckpt.errors import CheckpointError, Corruption, InvalidArgument, Unsupported

ALLOW = "open the session with allow_pickle=True if you trust its origin"


class Giver:
    def __init__(self, tensors, members, allow_pickle=False):
        self.tensors = tensors
        self.members = members
        self.allow_pickle = allow_pickle
        self._item = ""

    def give_item(self, name, node):
        self._item = name
        return self.give(node)

    def give(self, node):
        (kind, value), *_ = node.items()
        return _GIVE[kind](self, value)

    def archive(self, name):
        adapter = _frameworks.of_archives()
        return adapter.load_archive(name, self.members[name], self.allow_pickle)

    def of_kind(self, parts):
        kind, node = parts
        try:
            return _kinds.make(kind, self.give(node))
        except CheckpointError as error:
            raise type(error)(f'saved item "{self._item}": {error}') from error
        except Exception as error:  # The class of an enumeration may be anybody's.
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
            raise InvalidArgument(
                f'saved item "{self._item}" cannot be unpickled here ({error!r}): what it was made '
                "of must be importable under the same name"
            ) from error


# By what items.Taker calls it, what gives a node's value.
_GIVE = {
    "t": lambda giver, name: giver.tensors[name],
    "a": Giver.archive,
    "n": lambda giver, node: giver.give(node).item(),  # The number that was in a tensor.
    "s": lambda giver, node: giver.give(node),  # What an owner's state_dict() had.
    "g": lambda giver, parts: _frameworks.of_archives().by_numbers(giver.give(parts[1]), parts[0]),
    "v": lambda giver, value: value,
    "i": lambda giver, text: int(text, 16),
    "f": lambda giver, text: float(text),
    "b": lambda giver, text: base64.b64decode(text),
    "d": lambda giver, parts: {key: giver.give(part) for key, part in parts.items()},
    "m": lambda giver, pairs: {giver.give(key): giver.give(part) for key, part in pairs},
    "o": lambda giver, node: collections.OrderedDict(giver.give(node)),
    "e": lambda giver, parts: collections.defaultdict(*map(giver.give, parts)),
    "l": lambda giver, parts: [giver.give(part) for part in parts],
    "u": lambda giver, parts: tuple(giver.give(part) for part in parts),
    "k": Giver.of_kind,
    "p": Giver.unpickled,
}


class Placeholder:
    """Stands for a tensor, or for what is not looked at before it is restored."""

    def __init__(self, node=None):
        self.node = node or {}


class Outline(Giver):
    """Puts items together before there are tensors, to find out whether they fit."""

    def __init__(self, allow_pickle):
        super().__init__({}, {}, allow_pickle)

    def give(self, node):
        if "t" in node:
            return Placeholder(node)
        if "a" in node or "n" in node or ("p" in node and self.allow_pickle):
            return Placeholder()
        return self.give(node["e"][1]) if "e" in node else super().give(node)


def give_all(structure, tensors, members, allow_pickle=False):
    """The items again, as plain values. A member that is not among `members` is left out."""
    return _given(Giver(tensors, members, allow_pickle), structure)


def outline(structure, allow_pickle=False):
    """The items, with a Placeholder for each tensor. Raises what give_all would raise."""
    return _given(Outline(allow_pickle), structure)


def _given(giver, structure):
    try:
        return {name: giver.give_item(name, node) for name, node in structure.items()}
    except CheckpointError:
        raise
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise Corruption(f"the structure of the saved items is damaged: {error!r}") from error
