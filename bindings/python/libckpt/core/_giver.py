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
    """Puts items together from a structure and the tensors and members that were restored."""

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
        return getattr(self, f"_give_{kind}")(value)

    def _give_t(self, name):
        return self.tensors[name]

    def _give_a(self, name):
        adapter = _frameworks.of_archives()
        return adapter.load_archive(name, self.members[name], self.allow_pickle)

    def _give_v(self, value):
        return value

    def _give_n(self, node):
        return self.give(node).item()

    def _give_i(self, value):
        return int(value, 16)

    def _give_o(self, node):
        return collections.OrderedDict(self.give(node))

    def _give_e(self, parts):
        factory, node = parts
        return collections.defaultdict(self.give(factory), self.give(node))

    def _give_k(self, parts):
        kind, node = parts
        try:
            return _kinds.make(kind, self.give(node))
        except CheckpointError as error:
            raise type(error)(f'saved item "{self._item}": {error}') from error
        except Exception as error:  # The class of an enumeration may be anybody's.
            raise InvalidArgument(
                f'saved item "{self._item}": a {kind} cannot be made again here ({error!r})'
            ) from error

    def _give_f(self, value):
        return float(value)

    def _give_b(self, value):
        return base64.b64decode(value)

    def _give_s(self, node):
        return self.give(node)

    def _give_g(self, parts):
        away, node = parts
        return _frameworks.of_archives().by_numbers(self.give(node), away)

    def _give_d(self, parts):
        return {key: self.give(part) for key, part in parts.items()}

    def _give_m(self, pairs):
        return {self.give(key): self.give(part) for key, part in pairs}

    def _give_l(self, parts):
        return [self.give(part) for part in parts]

    def _give_u(self, parts):
        return tuple(self.give(part) for part in parts)

    def _give_p(self, value):
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
        return Placeholder() if "a" in node or "n" in node else super().give(node)

    def _give_e(self, parts):
        return self.give(parts[1])

    def _give_p(self, value):
        return Placeholder() if self.allow_pickle else super()._give_p(value)


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
