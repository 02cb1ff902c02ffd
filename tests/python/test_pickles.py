"""Goal: no checkpoint runs code, unless the session allows pickles.

Method: values of every kind that libckpt encodes go through a session that allows no pickle; all
else is refused by name, at the save and at the restore, with the option that allows it. A pickle
that would run code is put where an older version, or a stranger, would have left it.
"""

import collections
import datetime
import enum
import fractions
import json
import pathlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import libckpt  # noqa: E402


class Color(enum.Enum):
    RED = "r"
    ROUGE = "r"  # Another name for it.
    GREEN = {"any": "value"}


class Mode(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3


class Level(enum.IntEnum):
    LOW = 1


class Inner:
    class Kind(enum.Enum):
        ONE = 1


UTC = datetime.timezone.utc
EAST = datetime.timezone(datetime.timedelta(hours=5, minutes=45))
VALUES = [
    collections.Counter("abba"), collections.Counter(), {1, (2, "a"), None}, frozenset({"a"}),
    collections.deque([1, 2], maxlen=3), collections.deque(), bytearray(b"ab"), 1j, complex("nan"),
    range(3), range(9, 1, -2), slice(None), slice(1, None, 2),
    Color.RED, Color.ROUGE, Color.GREEN, Mode.BOTH, Mode.READ, Mode(0), Level.LOW, Inner.Kind.ONE,
    torch.Size([2, 3]), torch.Size([]), torch.bfloat16, torch.device("cuda:1"),
    numpy.dtype("float32"), numpy.dtype(">i4"), numpy.float64(0.1), numpy.bool_(True),
    numpy.str_("text"), numpy.bytes_(b""), numpy.datetime64("2026-01-01"), numpy.complex64(1j),
    datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=EAST),
    datetime.datetime(2026, 1, 2, fold=1), datetime.time(1, 2, tzinfo=UTC), UTC, EAST,
    datetime.timedelta(days=-1, microseconds=7),
    pathlib.Path("a/b"), pathlib.PurePosixPath("/a"), pathlib.PureWindowsPath("c:/a"),
    collections.defaultdict(list, {"a": [1]}), collections.defaultdict(None, {1: 2}), int, dict,
]  # fmt: skip


def name_of(value):
    """The same in all processes, as a set's own one is not."""
    return f"set of {len(value)}" if isinstance(value, set) else repr(value)


@pytest.mark.parametrize("value", VALUES, ids=name_of)
def test_a_value_of_a_kind_that_is_known_comes_back(value):
    from libckpt.core import _items, _rebuild

    structure, tensors, members = _items.flatten({"x": {"y": [value]}})
    found = _rebuild.rebuild(json.loads(structure), tensors, members)["x"]["y"][0]
    assert type(found) is type(value)
    assert found == value or repr(found) == repr(value)
    for name in ("maxlen", "fold", "tzinfo", "default_factory"):
        assert getattr(found, name, None) == getattr(value, name, None)


def test_tensors_in_a_set_come_back(job):
    session = job()
    session.save(1, {"x": {"some": {torch.ones(2)}}}).captured.result(30)
    (found,) = session.restore().items["x"]["some"]
    assert torch.equal(found, torch.ones(2))


def local_enum():
    class Local(enum.Enum):
        ONE = 1

    return Local.ONE


class Text(str):
    pass


REFUSED = [
    fractions.Fraction(1, 2), local_enum(), Text("a"), len, types.SimpleNamespace(),
    numpy.random.default_rng(3), numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    collections.namedtuple("Pair", "one other")(1, 2), collections.defaultdict(lambda: 0),
]  # fmt: skip


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_all_else_is_refused_by_name_with_the_option(value):
    from libckpt.core import _items

    with pytest.raises(libckpt.Unsupported, match=r'item "x\.y.*allow_pickle=True'):
        _items.flatten({"x": {"y": value}})


ran = []


def spring(value):
    ran.append(value)


class Trap:
    def __reduce__(self):
        return spring, (1,)


@pytest.mark.parametrize("wrap", [lambda value: [value], libckpt.TorchMember])
def test_a_pickle_that_is_there_is_not_run_and_the_option_is_named(job, wrap):
    session = job(allow_pickle=True)
    weight = torch.ones(3)
    session.save(1, {"weight": weight, "x": wrap({"y": Trap()})}).captured.result(30)
    session.abandon()
    session = job()
    with pytest.raises(libckpt.Unsupported, match='"x".*allow_pickle=True'):
        session.restore()
    assert not ran
    session.abandon()
    job(allow_pickle=True).restore()
    assert ran.pop() == 1


def test_a_member_holds_tensors_and_plain_containers(job):
    content = {
        "model": torch.nn.Linear(2, 3).state_dict(), "parameter": torch.nn.Parameter(torch.ones(2)),
        "types": [torch.ones(3, dtype=kind) for kind in (torch.bfloat16, torch.bool)],
        "plain": [1, 2.5, "a", b"b", None, True, (3,)], "size": torch.Size([3]),
        "dtype": torch.float16, "counter": collections.Counter("a"),
    }  # fmt: skip
    session = job()
    session.save(1, {"x": libckpt.TorchMember(content)}).captured.result(30)
    found = session.restore().items["x"]
    assert found.keys() == content.keys()
    assert torch.equal(found["model"]["weight"], content["model"]["weight"])
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert [part.dtype for part in found["types"]] == [torch.bfloat16, torch.bool]
    for name in ("plain", "size", "dtype", "counter"):
        assert found[name] == content[name]


def test_a_member_with_more_is_refused_at_the_save(job):
    message = r'item "x" holds a .*Fraction.*weights_only=True.*allow_pickle=True'
    with pytest.raises(libckpt.Unsupported, match=message):
        job().save(1, {"x": libckpt.TorchMember({"a": fractions.Fraction(1, 2)})})


def test_no_module_is_imported_because_a_checkpoint_names_it(job, monkeypatch, tmp_path):
    (tmp_path / "colors.py").write_text("import enum\nclass Color(enum.Enum):\n    RED = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import colors

    weight = torch.ones(3)
    session = job()
    session.save(1, {"weight": weight, "x": {"y": colors.Color.RED}}).captured.result(30)
    monkeypatch.delitem(sys.modules, "colors")
    with pytest.raises(libckpt.InvalidArgument, match=r'"x".*colors\.Color.*import it before'):
        session.restore()
    assert "colors" not in sys.modules


def test_an_enumeration_that_is_none_here_is_not_called(job, monkeypatch):
    class Shade(enum.Enum):
        DARK = 1

    Shade.__qualname__ = "Shade"
    module = types.ModuleType("shades")
    module.Shade = Shade
    Shade.__module__ = "shades"
    monkeypatch.setitem(sys.modules, "shades", module)
    session = job()
    session.save(1, {"x": [Shade.DARK]}).captured.result(30)
    module.Shade = ran.append  # Anything that can be called with a value.
    with pytest.raises(libckpt.InvalidArgument, match="shades.Shade"):
        session.restore()
    assert not ran


def test_the_state_of_every_scheduler_of_torch_needs_no_pickle():
    from libckpt.core import _items

    schedulers = torch.optim.lr_scheduler
    make = {
        "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 1.0),
        "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 2]),
        "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2),
        "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=5),
        "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.1, 0.2),
        "ReduceLROnPlateau": schedulers.ReduceLROnPlateau,
        "SequentialLR": lambda o: schedulers.SequentialLR(
            o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [2]
        ),
        "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.1),
    }
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        del make["SWALR"]  # Its state had a function.
    for name, one in make.items():
        scheduler = one(torch.optim.SGD([torch.ones(1)], lr=0.1, momentum=0.9))
        _items.flatten({name: scheduler})
