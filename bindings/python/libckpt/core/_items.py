"""A trainer's items, taken apart into named tensors and plain data.

The structure is JSON, and says of each part what it was; floats and integers come back exactly.
A value that neither JSON nor `_kinds` can hold is refused by name, or pickled by Python and carried
as opaque bytes where the session was opened with allow_pickle=True.
"""

import base64
import collections
import itertools
import json
import math
import pickle

from libckpt.core import _item_kinds, _kinds, _signals, _tensors, _trees
from libckpt.core._item_kinds import has_state, has_tensor
from libckpt.errors import InvalidArgument, Unsupported

PLAIN = frozenset((type(None), bool, str, int))  # JSON holds these as they are.
LARGE = 1 << 2000  # Python refuses to read, or to write, decimals of many more digits.
_PART = "part"  # In the place of the order of a tensor's dimensions: it is part of a larger one.
DEPTH_MAX = 100  # A third of the frames that Python allows when all of it is put together again.
RESERVED = "libckpt."  # The names that the structure and its neighbours have.

_text = json.JSONEncoder(separators=(",", ":")).encode


def _text_of_plain(value):
    """The text for values that JSON has, and for floats that it has not."""
    if type(value) is float:
        return _text({"v": value} if math.isfinite(value) else {"f": repr(value)})
    if type(value) is int and not -LARGE < value < LARGE:
        return f'{{"i":"{value:x}"}}'
    return f'{{"v":{_text(value)}}}'


class Tensors(dict):
    """By name. `places` says where those that are parts of larger ones lie in them, and
    `owners` has what the item holds: a tensor that several ranks have together."""

    def __init__(self):
        super().__init__()
        self.places, self.owners = {}, {}


class _Collision(Exception):
    """Two tensors have one name, of which the second must get another."""


class Known:
    """One save's view of tensors, for the next: there are thousands, and most stay alike."""

    def __init__(self):
        self.forget()

    def forget(self):
        self.tensors = {}  # By name: a tensor's type, its shape and the text for both.
        self.trees = _trees.Trees()


class Flattener:
    """Takes items apart into `tensors`, `members` and a structure, which is made as text at once.

    `known` is what an earlier Flattener saw; without it, what this one sees is not kept.
    """

    def __init__(self, items=None, allow_pickle=False, known=None):
        self._items = items or {}
        self._owners = _item_kinds.owners_of(self._items, for_capture=known is not None)
        self.tensors = Tensors()
        self.members = {}  # By name of the file, its entries.
        self.allow_pickle = allow_pickle
        self.seen = Known()
        self._known = known
        self._known_tensors = known.tensors if known else {}
        self.seen.trees = _trees.Trees(known.trees if known else None)
        self._is_remembered = known is None  # Or nobody wants it to be.
        self._depth = 0

    def flatten(self, name, value):
        """The structure of `value`; its tensors are added under names that begin with `name`."""
        kind = type(value)
        if kind in PLAIN or kind is float:
            return _text_of_plain(value)
        if kind is dict:
            return self.flatten_dictionary(name, value)
        if kind is collections.OrderedDict:
            return f'{{"o":{self.flatten_dictionary(name, value)}}}'
        if _tensors.is_tensor(value):
            return self._tensor(name, value)
        if kind is bytes:
            return _text({"b": base64.b64encode(value).decode()})
        if isinstance(value, _item_kinds.Member):
            self.members[name] = value.entries(name, self.allow_pickle)
            return _text({"a": name})
        if kind is _item_kinds.Number:
            return f'{{"n":{self._tensor(name, value.tensor)}}}'
        if has_state(value):
            return self._owner(name, value)
        if kind is list or kind is tuple:
            return self._container(name, value, self._sequence)
        if kind is collections.defaultdict:
            return self._default_dictionary(name, value)
        if isinstance(value, dict) and has_tensor(value):  # A Counter has none: it stays one.
            return self.flatten_dictionary(name, value)
        parts = _kinds.parts_of(value)
        if parts is not None:
            return f'{{"k":[{_text(parts[0])},{self.flatten(name, parts[1])}]}}'
        return self._pickled(name, value)

    def _owner(self, name, owner):
        """The structure of an item with a state_dict()."""
        for owners in self._owners:
            text = owners.flatten(self, name, owner)
            if text is not None:
                return text
        return self.flatten_state(name, owner.state_dict())

    def flatten_state(self, name, state):
        """The structure of what an owner's state_dict() has."""
        # Its load_state_dict() takes any kind of dictionary.
        is_dictionary = type(state) is collections.OrderedDict
        node = self.flatten_dictionary(name, state) if is_dictionary else self.flatten(name, state)
        return f'{{"s":{node}}}'

    def replicas(self):
        """By name, the tensors that are declared to be the same on all ranks, and what each is."""
        found = {}
        for owners in self._owners:
            found |= owners.replicas(self.tensors)
        return found

    def _tensor(self, name, value):
        while "//" in name:  # That would be an entry of a member.
            name = name.replace("//", "/'/")
        while name in self.tensors:  # As in {"a.b": x, "a": {"b": y}}.
            name += "'"
        part = _tensors.part_of(name, value)
        if part is not None:
            return self._part_of_larger(name, value, *part)
        self.tensors[name] = value
        known = self._known_tensors.get(name)
        if known is None or known[0] is not value.dtype or known[1] != value.shape:
            _check_text(name)
            _tensors.check(name, value)
            known = None
        order = _tensors.order_if_any(value)
        if known is None or known[3] != order:
            text = _text({"t": name, **_tensors.describe(value, order)})
            known = (value.dtype, value.shape, text, order)
        self.seen.tensors[name] = known
        return known[2]

    def _part_of_larger(self, name, owner, local, place):
        known = self._known_tensors.get(name)
        is_known = known is not None and known[3] is _PART and known[0] is local.dtype
        if not is_known or known[1] != local.shape:
            _check_text(name)
            _tensors.check(name, local)
            text = _text({"t": name, **_tensors.describe(local), "part": True})
            known = (local.dtype, local.shape, text, _PART)
        self.seen.tensors[name] = known
        self.tensors[name], self.tensors.places[name] = local, place
        self.tensors.owners[name] = owner
        return known[2]

    def _go_deeper(self, name):
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidArgument(
                f'item "{name[:200]}" is nested more than {DEPTH_MAX} deep, or contains itself: '
                "save it flat, as a list of its parts"
            )

    def _container(self, name, value, make):
        """The text that `make` makes of it, or that the save before made of it."""
        trees = self.seen.trees
        if not self._is_remembered and (found := trees.find(name, value)):
            return self._add_tree(*found)
        is_tree = not self._is_remembered and trees.is_wanted(name)
        self._is_remembered = self._is_remembered or is_tree  # With all that is in it.
        count = len(self.tensors)
        self._go_deeper(name)
        text = make(name, value)
        self._depth -= 1
        if is_tree:
            names = list(itertools.islice(self.tensors, count, None))
            if self.tensors.places.keys().isdisjoint(names):  # Else what it holds is not saved.
                trees.add(name, value, names, text, _text_of_plain)
            self._is_remembered = False
        return text

    def _add_tree(self, names, tensors, text):
        count = len(self.tensors)
        self.tensors.update(zip(names, tensors, strict=True))
        if len(self.tensors) != count + len(tensors):
            raise _Collision
        return text

    def _sequence(self, name, value):
        parts = [self.flatten(f"{name}.{i}", part) for i, part in enumerate(value)]
        return f'{{"{"l" if type(value) is list else "u"}":[{",".join(parts)}]}}'

    def flatten_dictionary(self, name, value):
        return self._container(name, value, self._pairs)

    def _default_dictionary(self, name, value):
        """A plain one, when it has tensors and what makes its values cannot be saved."""
        node = self.flatten_dictionary(name, value)
        try:
            return f'{{"e":[{self.flatten(f"{name}.factory", value.default_factory)},{node}]}}'
        except (InvalidArgument, Unsupported):
            if not has_tensor(value):
                raise
            return node

    def _pairs(self, name, value):
        keys, parts = list(value), list(value.values())
        if not all(type(key) is str for key in keys):
            pairs = [
                f"[{self.flatten(f'{name}.key', key)},{self.flatten(f'{name}.{key}', part)}]"
                for key, part in zip(keys, parts, strict=True)
            ]
            return f'{{"m":[{",".join(pairs)}]}}'
        texts = [f"{_text(key)}:{self._part(f'{name}.{key}', part)}"
                 for key, part in zip(keys, parts, strict=True)]  # fmt: skip
        return f'{{"d":{{{",".join(texts)}}}}}'

    def _part(self, name, value):
        """As `flatten`, which has more to ask before it comes to the most frequent case."""
        is_plain_tensor = name in self._known_tensors and _tensors.is_tensor(value)
        return self._tensor(name, value) if is_plain_tensor else self.flatten(name, value)

    def _pickled(self, name, value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if not self.allow_pickle:
            raise Unsupported(
                f'item "{name}" is a {kind}, which only a pickle can hold: save numbers, strings, '
                "lists and dictionaries instead, give it state_dict and load_state_dict, or open "
                "the session with allow_pickle=True"
            )
        try:
            return _text({"p": base64.b64encode(pickle.dumps(value)).decode()})
        except Exception as error:
            _signals.raise_of_handler(error)
            raise InvalidArgument(
                f'item "{name}" is a {kind} and cannot be saved ({error}): leave it out, or give '
                "it state_dict and load_state_dict"
            ) from error


def _check_text(name):
    """Names leave Python as UTF-8."""
    if name.isascii():
        return
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"item {name!r}: its name is no text ({error.reason})") from error


def check_name(name):
    if not name or name.startswith(RESERVED):
        raise InvalidArgument(
            f'item "{name}": a name is not empty and does not begin with "{RESERVED}": rename it'
        )
    _check_text(name)


def _kinds_of(items):
    if not isinstance(items, dict):
        return f"a {type(items).__name__}"
    return f"one with the name {next(name for name in items if type(name) is not str)!r}"


def flatten(items, allow_pickle=False, known=None, replicas=None):
    """(structure as JSON, tensors by name, members by name) of a dictionary of items.

    The caller keeps `known` for its next call. `replicas` gets the names of
    tensors that are declared to be the same on all ranks, and what each is.
    """
    if not isinstance(items, dict) or not all(type(name) is str for name in items):
        raise InvalidArgument(
            "items: a dictionary from names to what is to be saved is wanted, as "
            f'{{"model": model}}, and {_kinds_of(items)} was given'
        )
    for name in items:
        check_name(name)
    flattener = Flattener(items, allow_pickle, known)
    try:
        parts = [f"{_text(name)}:{flattener.flatten(name, value)}" for name, value in items.items()]
    except _Collision:
        known.forget()
        return flatten(items, allow_pickle, known, replicas)
    if known is not None:
        known.tensors, known.trees = flattener.seen.tensors, flattener.seen.trees
    if replicas is not None:
        replicas.update(flattener.replicas())
    return f"{{{','.join(parts)}}}", flattener.tensors, flattener.members
