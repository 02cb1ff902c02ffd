"""Goal: what nobody thought of when writing the library comes back exactly, or is refused by name.

Method: odd names, odd numbers, odd objects and odd places to call from; what comes back is compared
with what was saved, in type and value, and messages with what they must name.
"""

import collections
import contextlib
import dataclasses
import gc
import itertools
import logging
import math
import pathlib
import random
import re
import signal
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import libckpt  # noqa: E402
from libckpt.core import _mutations  # noqa: E402

Pair = collections.namedtuple("Pair", "one other")


@dataclasses.dataclass
class Progress:
    epoch: int = 0
    losses: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: int


# Objects that only a pickle holds.
PICKLED = [
    [Pair(1, [2]), Pair(torch.ones(2), None)],
    [Progress(3, [0.5]), Frozen(2)],
    numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    numpy.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    numpy.matrix([[1, 2]]),
    numpy.ma.array([1, 2, 3], mask=[0, 1, 0]),
]


def is_equal(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        keys = len(one) == len(other) and all(map(is_equal, one, other))
        return keys and all(map(is_equal, one.values(), other.values()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, float):
        return repr(one) == repr(other)  # Also of what is no number.
    return one == other


VALUES = [
    [2**63, -(2**64), 10**4200, 1 << 30_000, -(1 << 30_000)],
    [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1.7976931348623157e308],
    ["", "\ud800", "\0", "é\n", "a" * 100_000],
    collections.OrderedDict([("b", 1), ("a", torch.ones(2))]),
    collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(list, {"a": torch.ones(2), 1: [torch.zeros(1)]}),
    [(1, [2]), [3, (4,)], (), [], {}, ((),)],
    {1: "int", "1": "text", None: 0, (1, "a"): 2, 2.5: 3, b"b": 4},
    {1: torch.ones(1), "1": torch.ones(2), True: 3},
    {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, "a.b'": torch.ones(3)},
    {"a//b": torch.ones(1), "a/'/b": torch.ones(2), "///": torch.ones(3), "..": torch.ones(4)},
    {"模型/β": torch.ones(2), "a\nb": torch.zeros(1), "": torch.ones(3)},
    {"t": {"t": "t"}, "d": {"d": {"v": 1}}, "p": "p"},
    [set(), {1, 2}, frozenset("a"), range(3), 1j, bytearray(b"b"), pathlib.PurePosixPath("a")],
    [numpy.float64(0.1), numpy.float32(0.1), numpy.int8(-3), numpy.bool_(True)],
    [numpy.array(3), numpy.array("text"), numpy.zeros((0, 3))],
]


def test_plain_data_comes_back_in_type_and_value(job):
    session = job()
    items = {str(number): value for number, value in enumerate(VALUES)}
    session.save(1, items).captured.result(30)
    found = session.restore().items
    assert [number for number, value in items.items() if not is_equal(found[number], value)] == []


def test_what_only_a_pickle_holds_comes_back_where_pickles_are_allowed(job):
    session = job(allow_pickle=True)
    session.save(1, dict(zip("abcde", PICKLED))).captured.result(30)
    found = session.restore().items
    assert all(map(is_equal, found.values(), PICKLED))


def test_the_mask_of_an_array_comes_back(job):
    session = job(allow_pickle=True)
    session.save(1, {"x": numpy.ma.array([1, 2, 3], mask=[0, 1, 0])}).captured.result(30)
    found = session.restore().items["x"]
    assert found.mask.tolist() == [False, True, False]
    assert found.sum() == 4


def nested(depth, kind):
    value = torch.ones(1)
    for _ in range(depth):
        value = kind(value)
    return value


def test_a_deep_item_comes_back_or_is_refused(job):
    session = job()
    kinds = {"list": lambda v: [v], "text": lambda v: {"k": v}, "mixed": lambda v: ({1: v},)}
    deep = {name: nested(49, kind) for name, kind in kinds.items()}
    session.save(1, deep).captured.result(30)
    assert is_equal(session.restore().items, deep)
    for name, kind in kinds.items():
        with pytest.raises(libckpt.InvalidArgument, match=f'"{name}.*nested more than 100 deep'):
            session.save(2, {name: nested(2000, kind)})


def test_an_item_that_contains_itself_is_refused(job):
    endless = {}
    endless["again"] = [endless]
    with pytest.raises(libckpt.InvalidArgument, match='"x.again.0.*contains itself'):
        job().save(1, {"x": endless})


def test_a_name_that_cannot_be_is_refused(job):
    session = job()
    for step, (name, message) in enumerate(
        [
            ("", "not empty"),
            ("libckpt.room", "rename it"),
            ("libckpt.shares", "rename it"),
            ("\ud800", r"\\ud800.*no text"),
            ("__metadata__", "reserved by the safetensors format"),
            ("a" * 5000, "longer than 4096"),
            (3, "from names"),
        ]
    ):
        with pytest.raises(libckpt.InvalidArgument, match=message):
            session.save(step, {name: torch.ones(1)})


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def two_in_one():
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.ones(2), torch.zeros(2))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_tensor_without_bytes_of_its_own_is_refused(job):
    session = job()
    for step, (tensor, advice) in enumerate(
        [
            (torch.nn.LazyLinear(3).weight, "make a forward pass"),
            (torch.nested.nested_tensor([torch.ones(2)]), "unbind"),
            (torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "unbind"),
            (fake(), "save the real one"),
            (two_in_one(), "TwoTensor, which is made of other tensors"),
        ]
    ):
        with pytest.raises(libckpt.Unsupported, match=r'"model\.odd".*' + advice):
            session.save(step, {"model": {"odd": tensor}})


def test_a_tensor_that_turns_sparse_is_refused_by_name(job):
    session = job()
    for step in (1, 2):
        session.save(step, {"model": {"odd": torch.eye(3)}}).captured.result(30)
    for step in (3, 4):
        with pytest.raises(libckpt.Unsupported, match=r'"model\.odd".*to_dense'):
            session.save(step, {"model": {"odd": torch.eye(3).to_sparse()}})


def test_plain_data_that_is_too_large_is_refused_by_name(job):
    session = job(allow_pickle=True)
    with pytest.raises(libckpt.Exhausted, match='item "long" the largest.*blob_capacity'):
        session.save(1, {"long": list(range(1_000_000)), "short": [1]})
    with pytest.raises(libckpt.Exhausted, match='item "pair" the largest'):
        session.save(2, {"pair": Pair(torch.ones(2 << 20), 1)})
    session.save(3, {"long": numpy.arange(1_000_000)}).captured.result(30)


def test_a_step_that_is_none_is_refused(job):
    session = job()
    for step in (-1, 1.5, "3", None, 1 << 63, 1 << 64):
        for call in (session.save, session.save_checkpoint_if_needed):
            with pytest.raises(libckpt.InvalidArgument, match="whole numbers from 0"):
                call(step, {"a": 1})
    session.save(numpy.int64(4), {"a": 1}).captured.result(30)
    assert session.save(torch.tensor(9), {"a": 1}).step == 9


# --- The targets of a restore ---


def test_a_nested_tensor_is_filled_where_it_is(job):
    model, other = torch.nn.Linear(3, 3), torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    inner = [torch.nn.Linear(1, 1)]
    items = {"run": {"model": model, "optimizer": optimizer, "more": inner}, "pair": (other, 1)}
    optimizer.param_groups[0]["lr"] = 0.5
    expected = [part.detach().clone() for part in (model.weight, other.weight, inner[0].weight)]
    session = job()
    session.save(1, items).captured.result(30)
    with torch.no_grad():
        for module in (model, other, inner[0]):
            module.weight.zero_()
    optimizer.param_groups[0]["lr"] = 0.1
    session.restore(items)
    assert all(map(torch.equal, (model.weight, other.weight, inner[0].weight), expected))
    assert items["run"]["model"] is model
    assert items["run"]["more"] is inner
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_parameters_in_containers_are_filled_where_an_optimizer_has_them(job):
    """Another tensor in their place would never be trained, and nothing would report it."""

    def trainer(seed):
        generator = torch.Generator().manual_seed(seed)
        weights = [torch.rand(4, 3, generator=generator) for _ in range(4)]
        params = {
            "layers": [torch.nn.Parameter(weights[0]), weights[1].requires_grad_()],
            "turned": torch.nn.Parameter(weights[2].t()),  # Not contiguous.
            "frozen": torch.nn.Parameter(weights[3], requires_grad=False),
        }
        params["tied"] = params["layers"][0]
        leaves = [*params["layers"], params["turned"]]
        return {"params": params, "optimizer": torch.optim.SGD(leaves, lr=0.1, momentum=0.9)}

    def train(items):
        params = items["params"]
        loss = (params["layers"][0] * params["tied"] * params["layers"][1] * params["frozen"]).sum()
        (loss + params["turned"].square().sum()).backward()
        items["optimizer"].step()
        items["optimizer"].zero_grad()

    first, second = trainer(1), trainer(2)
    train(first)
    session = job()
    session.save(1, first).captured.result(30)
    before = {**second["params"], "layers": list(second["params"]["layers"])}
    session.restore(second)
    assert second["params"]["tied"] is before["tied"] is second["params"]["layers"][0]
    assert second["params"]["turned"] is before["turned"]
    train(first)
    train(second)
    for name in ("tied", "turned", "frozen"):
        assert torch.equal(first["params"][name], second["params"][name]), name
    assert torch.equal(first["params"]["layers"][1], second["params"]["layers"][1])
    with pytest.raises(libckpt.InvalidArgument, match=r'"params\.frozen" is F32 \[4, 3\] here'):
        session.save(2, {"params": {"frozen": torch.nn.Parameter(torch.ones(5))}})
        session.wait(2, "committed")
        session.restore({"params": {"frozen": second["params"]["frozen"]}})


def test_tensors_in_containers_are_filled_unless_others_have_their_memory(job):
    """As averages of weights, which begin as the weights themselves."""
    model = torch.nn.Linear(3, 3)
    averages = {name: part + 1.0 for name, part in model.state_dict().items()}
    last = torch.full((3,), 5.0)
    session = job()
    session.save(
        1, {"model": model, "averages": averages, "seen": {"last": last, "best": last + 1}}
    ).captured.result(30)
    weight, average = model.weight.detach().clone(), averages["weight"].clone()
    with torch.no_grad():
        model.weight.zero_()

    one = torch.zeros(3)
    alone = torch.zeros(3, 3)
    items = {
        "averages": {"weight": alone, "bias": model.state_dict()["bias"]},
        "model": model,
        "seen": {"last": one, "best": one},
    }
    session.restore(items)
    assert torch.equal(model.weight, weight)
    assert items["averages"]["weight"] is alone
    assert torch.equal(alone, average)
    assert torch.equal(items["averages"]["bias"], model.bias + 1.0)
    assert items["seen"]["last"].eq(5.0).all()
    assert items["seen"]["best"].eq(6.0).all()


def test_what_state_dict_and_parameters_answer_is_filled_where_the_model_has_it(job):
    """A usual argument of torch.save; also in memory that is not contiguous."""

    def model():
        made = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.BatchNorm2d(3))
        return made.to(memory_format=torch.channels_last)

    def items(model, shadow):
        return {"model": model.state_dict(), "shadow": [[part] for part in shadow]}

    first, second = model(), model()
    shadow = [part.detach() + 1 for part in first.parameters()]
    others = [torch.zeros_like(part) for part in shadow]
    session = job()
    session.save(1, items(first, shadow)).captured.result(30)
    with torch.no_grad():
        for part in second.parameters():
            part.zero_()
    session.restore(items(second, others))
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    assert all(map(torch.equal, shadow, others))

    session.save(2, {"model": list(first.parameters())}).captured.result(30)
    with torch.no_grad():
        for part in second.parameters():
            part.zero_()
    session.restore({"model": list(second.parameters())})
    assert all(map(torch.equal, first.parameters(), second.parameters()))


def test_tensors_that_were_tied_and_are_not_here_are_both_filled(job):
    tied = torch.full((4,), 3.0)
    session = job()
    session.save(1, {"all": [tied, {"again": tied}], "turn": tied}).captured.result(30)
    one, other = torch.zeros(4), torch.zeros(4)
    session.restore({"all": [one, {"again": other}], "turn": torch.zeros(4)})
    assert one.eq(3).all()
    assert other.eq(3).all()
    assert one.data_ptr() != other.data_ptr()


def test_a_nested_tensor_of_another_shape_is_refused_or_named(job, caplog):
    session = job()
    session.save(1, {"model": torch.nn.Linear(3, 3).state_dict()}).captured.result(30)
    items = {"model": torch.nn.Linear(3, 4).state_dict()}
    with pytest.raises(libckpt.InvalidArgument, match=r'"model\.weight" is F32 \[4, 3\] here'):
        session.restore(items)
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        session.restore(items, strict=False)
    assert "2 tensor(s) in containers could not be filled" in caplog.text
    assert "model.weight, model.bias" in caplog.text


def test_a_tensor_of_another_shape_stays_when_not_strict(job, caplog):
    session = job()
    session.save(1, {"one": torch.ones(1)}).captured.result(30)
    larger = torch.zeros(3)
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        session.restore({"one": larger}, strict=False)
    assert larger.eq(0).all()
    assert 'tensor "one" stays as it is' in caplog.text


def test_memory_that_others_share_is_named_when_it_is_not_filled(job, caplog):
    session = job()
    session.save(1, {"seen": {"last": torch.ones(3), "best": torch.zeros(3)}}).captured.result(30)
    one = torch.full((3,), 2.0)
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        session.restore({"seen": {"last": one, "best": one}})
    assert "seen.last, seen.best" in caplog.text


def test_a_state_dict_that_nobody_loads_is_named(job, caplog):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    session = job()
    items = {"run": {"optimizer": optimizer.state_dict(), "model": model.state_dict()}}
    session.save(1, items).captured.result(30)
    fresh = torch.optim.Adam(model.parameters()).state_dict()
    state = torch.nn.Linear(2, 2, bias=False).state_dict()
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        session.restore({"run": {"optimizer": fresh, "model": state}})
    assert '"run.optimizer" is the state_dict() of an optimizer' in caplog.text
    assert '"run.model" is the state_dict() of a module, which has no bias' in caplog.text


def test_a_tensor_that_cannot_be_written_is_refused_before_anything_is(job):
    session = job()
    session.save(1, {"a": torch.ones(3), "b": torch.ones(2, 3)}).captured.result(30)
    kept = torch.zeros(3)
    with pytest.raises(libckpt.InvalidArgument, match=r'"b" cannot be filled: it is expanded'):
        session.restore({"a": kept, "b": torch.zeros(3).expand(2, 3)})
    assert kept.eq(0).all()
    locked = numpy.zeros(3, dtype="float32")
    locked.flags.writeable = False
    with pytest.raises(libckpt.InvalidArgument, match='"a" cannot be filled: .*read-only'):
        session.restore({"a": locked, "b": torch.zeros(2, 3)})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (torch.zeros(3, dtype=torch.complex64).conj(), "resolve_conj"),
        (torch.zeros(3, dtype=torch.complex64).conj().imag, "resolve_neg"),
        (torch.zeros(6)[::2], "it has gaps"),
    ],
    ids=["conjugated", "negated", "gaps"],
)
def test_an_array_that_cannot_be_filled_as_it_lies_is_refused_with_the_reason(job, given, reason):
    array = libckpt.Array("a", given, global_shape=(3,), offset=(0,))
    with pytest.raises(libckpt.InvalidArgument, match=f'"a" cannot be filled: .*{reason}'):
        job().restore(arrays=[array])


def test_a_restore_that_fails_at_an_object_tells_that_the_model_was_overwritten(job):
    class Picky:
        def state_dict(self):
            return {"a": 1}

        def load_state_dict(self, state):
            raise ValueError("not this")

    model = torch.nn.Linear(2, 2)
    session = job()
    session.save(1, {"model": model, "picky": Picky()}).captured.result(30)
    with pytest.raises(libckpt.InvalidArgument, match="does not take.*do not train on with them"):
        session.restore({"model": model, "picky": Picky()})


def test_a_nested_tensor_is_compared_as_all_others(job):
    session = job()
    session.save(1, {"run": {"a": torch.nn.Linear(3, 3)}}).captured.result(30)
    with pytest.raises(libckpt.InvalidArgument, match=r'"run\.a\.weight" is F32 \[3, 4\] here'):
        session.restore({"run": {"a": torch.nn.Linear(4, 3)}})
    with pytest.raises(libckpt.InvalidArgument, match=r'"run\.b" was not saved'):
        session.restore({"run": {"b": torch.nn.Linear(3, 3)}})
    sampler = torch.optim.SGD([torch.ones(1)], lr=1.0)
    with pytest.raises(libckpt.InvalidArgument, match=r'"run\.c" was not saved'):
        session.restore({"run": {"c": sampler}})


def test_objects_are_filled_where_they_are(job):
    items = {
        "progress": Progress(3, [0.5]), "set": {1}, "deque": collections.deque([1], maxlen=3),
        "bytes": bytearray(b"a"), "counter": collections.Counter("a"),
        "python": random.Random(3), "numpy": numpy.random.default_rng(3),
        "old": numpy.random.RandomState(3), "torch": torch.Generator().manual_seed(3),
        "records": numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    }  # fmt: skip
    session = job(allow_pickle=True)
    session.save(1, items).captured.result(30)

    def drawn():
        return (items["python"].random(), items["numpy"].random(), items["old"].rand(),
                torch.rand(1, generator=items["torch"]).item())  # fmt: skip

    expected, objects = drawn(), list(items.values())
    items["progress"].epoch, items["progress"].more = 9, 1
    items["set"].add(2)
    items["deque"].append(2)
    items["bytes"].extend(b"b")
    items["counter"].update("b")
    items["records"]["a"] = 7
    session.restore(items)
    assert drawn() == expected
    assert [one is other for one, other in zip(items.values(), objects)] == [True] * len(objects)
    assert items["progress"] == Progress(3, [0.5])
    assert vars(items["progress"]) == {"epoch": 3, "losses": [0.5]}
    assert items["set"] == {1}
    assert list(items["deque"]) == [1]
    assert items["bytes"] == b"a"
    assert items["counter"] == collections.Counter("a")
    assert items["records"]["a"] == 1


def test_an_object_that_cannot_be_filled_is_named(job, caplog):
    class NoLoad:
        def state_dict(self):
            return {"a": 1}

    session = job(allow_pickle=True)
    items = {"frozen": Frozen(1), "number": 3, "text": "a", "tuple": (1,), "scalar": numpy.int64(2)}
    session.save(1, {**items, "no load": NoLoad()}).captured.result(30)
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        session.restore(items)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert '"frozen", a Frozen, cannot be filled' in told[0]
    assert 'the checkpoint also has "no load", not given to restore here' in told[1]
    with pytest.raises(libckpt.InvalidArgument, match=r'"no load", a NoLoad.*Restored\.items'):
        session.restore({"no load": NoLoad()})


def test_plain_values_that_differ_are_named_in_one_warning(job, caplog):
    there = {"w": numpy.ones(3), "epoch": 7, "name": "run", "loss": math.nan, "best": (7, 2, [1]),
             "same": 5, "lr": 0.5, "progress": {"epoch": 7}}  # fmt: skip
    here = {"w": numpy.zeros(3), "epoch": 0, "name": "", "loss": math.nan, "best": (0, 2, [0]),
            "same": 5, "lr": None, "progress": {"epoch": 0}}  # fmt: skip
    session = job()
    session.save(1, there)
    restored = session.restore(here)
    assert (here["epoch"], here["best"], here["progress"]) == (0, (0, 2, [1]), {"epoch": 7})
    assert (restored.items["epoch"], restored.items["best"]) == (7, (7, 2, [1]))
    told = [record.getMessage() for record in caplog.records if "plain value" in record.message]
    assert len(told) == 1 and "Restored.items" in told[0]
    assert re.findall(r'"(\S+)" was saved as (\S+) and is (\S+) here', told[0]) == [
        ("epoch", "7", "0"), ("name", "'run'", "''"), ("best.0", "7", "0"), ("lr", "0.5", "None"),
    ]  # fmt: skip
    caplog.clear()
    session.restore(restored.items)
    assert not caplog.records  # No warning of equal values.


def test_an_optimizer_of_another_model_is_named(job):
    def optimizer(count):
        return torch.optim.Adam([torch.nn.Parameter(torch.ones(2)) for _ in range(count)])

    session = job()
    session.save(1, {"opt": optimizer(2)}).captured.result(30)
    with pytest.raises(libckpt.InvalidArgument, match='"opt", a Adam, does not take its state'):
        session.restore({"opt": optimizer(3)})


def test_an_object_that_cannot_be_unpickled_is_named(job, monkeypatch):
    session = job(allow_pickle=True)
    session.save(1, {"x": Progress(1)}).captured.result(30)
    monkeypatch.delitem(globals(), "Progress")
    with pytest.raises(libckpt.InvalidArgument, match='"x" cannot be unpickled here.*importable'):
        session.restore()


# --- Where it is called from ---


def test_a_model_that_was_compiled_comes_back(job):
    model = torch.compile(torch.nn.Linear(4, 4))
    expected = model.weight.detach().clone()
    session = job()
    session.save(1, {"model": model}).captured.result(30)
    with torch.no_grad():
        model.weight.zero_()
    session.restore({"model": model})
    assert torch.equal(model.weight, expected)


def test_the_modes_of_torch_do_not_matter(job):
    session = job()
    view = torch.arange(6.0).view(2, 3).t()
    items = {"view": view, "none": torch.ones(0), "m": libckpt.TorchMember([view, torch.ones(0)]),
             "rng": libckpt.RNG()}  # fmt: skip
    modes = (torch.inference_mode(), torch.no_grad(), torch.device("meta"), torch.enable_grad())
    step = 0
    for mode in modes:
        view[0, 0] += 1
        with mode:
            step += 1
            while not session.save(step, items):  # While no Slot is free.
                step += 1
            session.wait(step, "committed", 30)
            found = session.restore().items
        assert torch.equal(found["view"], view)
        assert torch.equal(found["m"][0], view)
        assert {str(part.device) for part in (found["none"], *found["m"])} == {"cpu"}


def test_saving_in_an_exception_handler_leaves_the_exception_alone(job):
    session = job()
    with pytest.raises(ZeroDivisionError) as raised:
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            session.save(1, {"a": torch.ones(3)}).committed.result(30)
            raise
    assert raised.value.__context__ is None
    assert session.latest == 1


def test_a_save_within_a_save_is_refused(job):
    session = job()

    class Nosy:
        def state_dict(self):
            with pytest.raises(libckpt.InvalidArgument, match="in the middle of another call"):
                session.save(2, {"b": 1})
            return {"a": 1}

    session.save(1, {"x": Nosy()}).captured.result(30)
    assert session.restore().items == {"x": {"a": 1}}


def test_a_signal_handler_that_saves_in_mid_save_mixes_nothing(job):
    session = job(raise_on_error=False)
    outcomes = []

    class Interrupted:
        def state_dict(self):
            signal.raise_signal(signal.SIGUSR1)
            return {"a": torch.ones(3)}

    def handler(*_):
        outcomes.append(session.save(5, {"other": torch.zeros(9)}).outcome)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        session.save(1, {"x": Interrupted()}).captured.result(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert outcomes == ["failed"]
    assert is_equal(session.restore().items, {"x": {"a": torch.ones(3)}})


def test_threads_that_save_at_the_same_time_mix_nothing(job):
    session = job(raise_on_error=False)
    steps = itertools.count(1)
    turn = threading.Lock()

    def save(value):
        for _ in range(60):
            with turn:
                step = next(steps)
            tensors = {f"{value}-{i}": torch.full((50 + value,), float(value)) for i in range(20)}
            session.save(step, {"of": value, **tensors})

    threads = [threading.Thread(target=save, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = session.restore().items
    value = found.pop("of")
    assert len(found) == 20
    assert all(set(part.tolist()) == {float(value)} for part in found.values())


def test_training_goes_on_while_another_thread_waits_for_a_level(job):
    session = job()
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.guard(optimizer)
    began, end = threading.Event(), threading.Event()

    def wait():
        began.set()
        while not end.is_set():
            with contextlib.suppress(libckpt.CheckpointError):
                session.wait(1_000_000, "captured", 20)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    began.wait()
    for step in range(1, 30):
        session.save(step, {"model": model})
        optimizer.step()
    end.set()
    session.close()  # The waiter finds it closed.
    waiter.join()


def test_what_a_capture_reads_is_kept_though_a_waiting_thread_lets_go():
    class Client:
        def hold(self, is_held):
            pass

    mutations = _mutations.Mutations(Client())
    memory = [object()]
    mutations.begin(1, {}, {}, memory)
    mutations.memory = None  # As a wait in another thread does once the capture before has ended.
    mutations.began(True)
    assert mutations.memory is memory


def test_room_for_a_step_is_made_without_numpy(job, monkeypatch):
    session = job()
    monkeypatch.setitem(sys.modules, "numpy", None)
    session._tensors.reserve({}, {}, 1 << 20, None)


def test_two_jobs_of_one_process_have_each_their_own(job):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one, other = job("one").guard(optimizer), job("other").guard(optimizer)
    model(torch.ones(1, 4)).sum().backward()
    expected = {}
    for session, step in ((one, 3), (other, 8)):
        expected[step] = model.weight.detach().clone()
        session.save(step, {"model": model}).committed.result(30)
        optimizer.step()
    for session, step in ((one, 3), (other, 8)):
        restored = session.restore({"model": model})
        assert restored.step == step
        assert torch.equal(model.weight, expected[step])


def test_collections_during_a_save_free_nothing_that_it_needs(job):
    session = job(allow_pickle=True)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for step in range(1, 6):
            items = {"a": [torch.full((1000,), float(step))], "b": {"c": Progress(step)}}
            items["cycle"] = torch.nn.Sequential(torch.nn.Linear(2, 2))
            items["cycle"].itself = [items["cycle"]]
            if not session.save(step, items):
                continue
            found = session.restore(step=step).items
            assert found["a"][0].eq(step).all()
            assert found["b"]["c"].epoch == step
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()


def test_a_job_with_an_odd_name_works_or_is_refused_by_name(job, tmp_path):
    worked = []
    for number, name in enumerate(["a b", "a/b", "..", "é", "a" * 300, "-", "a\nb", "a\0b", " "]):
        try:
            session = job(name, dir=tmp_path / f"dir-{number}", save_storage_interval=1)
        except libckpt.InvalidArgument as error:
            assert "job" in str(error)
            continue
        session.save(1, {"a": torch.ones(3)}).durable.result(60)
        assert session.restore().step == 1
        worked.append(f"dir-{number}")
    assert {path.name for path in tmp_path.iterdir()} - {"runtime"} == set(worked)


@pytest.mark.slow
def test_the_structure_of_very_many_tensors_finds_room(job):
    parts = {f"layers.{i}.weight": torch.full((1,), i) for i in range(90_000)}
    session = job()
    session.save(1, {"parts": parts})
    session.wait(1, "captured", 60)
    restored = session.restore().items["parts"]
    assert restored.keys() == parts.keys()
    assert [int(tensor) for tensor in restored.values()] == list(range(90_000))
