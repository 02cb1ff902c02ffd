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
    if kind in _PARTS:
        name, take = _PARTS[kind]
        return name, take(value)
    if isinstance(value, enum.Enum):
        return _parts_of_enum(value)
    if kind is type:
        return ("type", value.__name__) if TYPES.get(value.__name__) is value else None
    if isinstance(value, datetime.timezone):
        return "timezone", value.utcoffset(None)
    if isinstance(value, (datetime.datetime, datetime.time)):
        return _parts_of_time(value)
    return _frameworks.first_answer(lambda adapter: adapter.parts_of(value))


def make(name, parts):
    """The value again. Raises KeyError for a kind that is unknown here."""
    make_one = _MAKE.get(name)
    if make_one is not None:
        return make_one(parts)
    return _frameworks.adapter_of(name.partition(".")[0]).make(name, parts)


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


_BY_CLASS = (  # The class, its name, the parts of a value, and the value again.
    (set, "set", list, set),
    (frozenset, "frozenset", list, frozenset),
    (bytearray, "bytearray", bytes, bytearray),
    (complex, "complex", lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
    (range, "range", lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
    (slice, "slice", lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts)),
    (collections.deque, "deque", lambda d: [list(d), d.maxlen],
     lambda parts: collections.deque(*parts)),
    (collections.Counter, "Counter", dict, collections.Counter),
    (datetime.date, "date", datetime.date.isoformat, datetime.date.fromisoformat),
    (datetime.timedelta, "timedelta", lambda t: [t.days, t.seconds, t.microseconds],
     lambda parts: datetime.timedelta(*parts)),
)  # fmt: skip
_PARTS = {kind: (name, take) for kind, name, take, _ in _BY_CLASS}
_PARTS |= {kind: ("path", lambda path: [type(path).__name__, str(path)]) for kind in PATHS.values()}
_MAKE = {
    **{name: make_one for _, name, _, make_one in _BY_CLASS},
    "time": _make_time(datetime.time),
    "datetime": _make_time(datetime.datetime),
    "timezone": datetime.timezone,
    "path": lambda parts: PATHS[parts[0]](parts[1]),
    "type": TYPES.__getitem__,
    "enum": _make_enum,
    "flags": _make_flags,
}
