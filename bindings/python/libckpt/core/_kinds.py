"""Kinds: Python's own kinds of values that JSON does not have, as a name and plain parts.

Nothing is imported because a checkpoint names it. A class comes from the tables below; that of an
enumeration must be one that the program has imported, and is looked up without running any code.
"""

import collections
import datetime
import enum
import pathlib
import sys

from libckpt.core import _frameworks
from libckpt.errors import InvalidArgument

TYPES = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
                 frozenset)
}  # fmt: skip
PATHS = {
    kind.__name__: kind
    for kind in (pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath,
                 pathlib.WindowsPath)
}  # fmt: skip


def parts_of(value):
    """(name of the kind, its parts); None: it is of no such kind."""
    kind = type(value)
    parts = _PARTS.get(kind)
    if parts is not None:
        name, take = parts
        return name, take(value)
    if isinstance(value, enum.Enum):
        return _parts_of_enum(value)
    if kind is type:
        return ("type", value.__name__) if TYPES.get(value.__name__) is value else None
    if isinstance(value, datetime.timezone):
        return "timezone", value.utcoffset(None)
    if isinstance(value, (datetime.datetime, datetime.time)):
        return _parts_of_time(value)
    return _frameworks.first(lambda adapter: adapter.parts_of(value))


def make(name, parts):
    """The value again. Raises KeyError for a kind that is unknown here."""
    make_one = _MAKE.get(name)
    if make_one is not None:
        return make_one(parts)
    return _frameworks.named(name.partition(".")[0]).make(name, parts)


def _parts_of_time(value):
    name = type(value).__name__
    if type(value) not in (datetime.datetime, datetime.time):
        return None
    if not isinstance(value.tzinfo, (type(None), datetime.timezone)):
        return None  # Its rules are not ours to save.
    return name, [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, value.tzinfo]


def _make_time(kind):
    def make_one(parts):
        text, fold, zone = parts
        return kind.fromisoformat(text).replace(fold=fold, tzinfo=zone)

    return make_one


def _parts_of_enum(value):
    kind = type(value)
    if _loaded_enum(kind.__module__, kind.__qualname__) is not kind:
        return None
    if kind.__members__.get(value.name) is value:
        return "enum", [kind.__module__, kind.__qualname__, value.name]
    return "flags", [kind.__module__, kind.__qualname__, value.value]


def _loaded_enum(module, name):
    """The enumeration of that name among the imported modules, or None."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, enum.Enum) else None


def _wanted_enum(module, name):
    found = _loaded_enum(module, name)
    if found is None:
        raise InvalidArgument(
            f"a member of the enumeration {module}.{name} was saved, which is not imported here: "
            "import it before the restore"
        )
    return found


def _make_enum(parts):
    module, name, member = parts
    kind = _wanted_enum(module, name)
    if member not in kind.__members__:
        raise InvalidArgument(
            f"{module}.{name}.{member} was saved, and the enumeration has no such member here"
        )
    return kind.__members__[member]


def _make_flags(parts):
    module, name, value = parts
    kind = _wanted_enum(module, name)
    if not issubclass(kind, enum.Flag) or type(value) is not int:
        raise InvalidArgument(f"{module}.{name} was saved as flags, and is none here")
    return kind(value)


_PARTS = {
    set: ("set", list),
    frozenset: ("frozenset", list),
    bytearray: ("bytearray", bytes),
    complex: ("complex", lambda value: [value.real, value.imag]),
    range: ("range", lambda value: [value.start, value.stop, value.step]),
    slice: ("slice", lambda value: [value.start, value.stop, value.step]),
    collections.deque: ("deque", lambda value: [list(value), value.maxlen]),
    collections.Counter: ("Counter", dict),
    datetime.date: ("date", lambda value: value.isoformat()),
    datetime.timedelta: ("timedelta", lambda v: [v.days, v.seconds, v.microseconds]),
    **{kind: ("path", lambda value: [type(value).__name__, str(value)]) for kind in PATHS.values()},
}
_MAKE = {
    "set": set,
    "frozenset": frozenset,
    "bytearray": bytearray,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
    "deque": lambda parts: collections.deque(*parts),
    "Counter": collections.Counter,
    "date": datetime.date.fromisoformat,
    "time": _make_time(datetime.time),
    "datetime": _make_time(datetime.datetime),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "timezone": datetime.timezone,
    "path": lambda parts: PATHS[parts[0]](parts[1]),
    "type": TYPES.__getitem__,
    "enum": _make_enum,
    "flags": _make_flags,
}
