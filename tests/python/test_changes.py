"""Goal: what is remembered from save to save is never taken for what has changed.

Method: a state is saved, changed in one of the ways that leave its names as they are, and saved
again; the second step is read back by itself and compared with what the state was at that call.
"""

import gc
import itertools
import time

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch.nn.utils import prune  # noqa: E402

import libckpt  # noqa: E402

SIZE = 96  # A square has the same shape when it is transposed.
ROWS = 1024  # More than is kept in a buffer when it moves.


def bytes_of(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def state_of(module):
    return {
        name: (part.dtype, tuple(part.shape), bytes_of(part))
        for name, part in module.state_dict().items()
    }


class Parts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.square = torch.nn.Parameter(torch.rand(SIZE, SIZE))
        self.large = torch.nn.Parameter(torch.rand(ROWS, SIZE))
        self.inner = torch.nn.BatchNorm1d(7)
        self.register_buffer("complex", torch.randn(SIZE, dtype=torch.complex64))
        self.register_buffer("number", torch.rand(1))


def replace(module):
    module.large = torch.nn.Parameter(torch.rand(ROWS, SIZE))


def replace_data(module):
    module.large.data = torch.rand(ROWS, SIZE)


def free_and_make_again(module):
    # The allocator gives the memory of the old one to the new one, more often than not.
    del module.large
    gc.collect()
    module.large = torch.nn.Parameter(torch.rand(ROWS, SIZE))
    module.register_parameter("square", module._parameters.pop("square"))


def resize(module):
    module.large.requires_grad_(False).resize_(2 * ROWS, SIZE).copy_(torch.rand(2 * ROWS, SIZE))


def shrink(module):
    module.large.requires_grad_(False).resize_(ROWS // 2, SIZE)


def empty_the_memory_and_fill_it_again(module):
    storage = module.large.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.no_grad():
        module.large.copy_(torch.rand(ROWS, SIZE))


def change_the_type_in_place(module):
    module.complex.data = module.complex.data.view(torch.int64)


def halve(module):
    module.half()


def reshape(module):
    module.large.data = module.large.data.view(SIZE, ROWS)


def transpose(module):
    module.square.data = module.square.data.t()


def conjugate(module):
    module.complex = module.complex.conj()


def negate_without_touching(module):
    module.number = torch._neg_view(module.number)


def look_at_a_part(module):
    module.square.data = module.large.data[:SIZE]


def exchange(module):
    module.square.data, module.large.data = module.large.data, module.square.data


def tie(module):
    module.square = module.large


def rename(module):
    module.renamed = module.square
    del module.square


def leave_out(module):
    module._non_persistent_buffers_set.add("number")


def hook(module):
    module.inner.register_state_dict_post_hook(
        lambda inner, state, prefix, _: state.update({f"{prefix}weight": torch.rand(3)})
    )
    state = module.inner.state_dict()["weight"]
    assert state.shape == (3,)
    module.inner._state_dict_hooks.clear()
    module.inner.register_state_dict_post_hook(
        lambda inner, state, prefix, _: state.update({f"{prefix}weight": torch.ones(3)})
    )


def say_it_in_the_instance(module):
    module.state_dict = lambda *_, **__: {"large": module.large.detach() + 1}


def add_to_the_inner_state(module):
    class Told(torch.nn.BatchNorm1d):
        def get_extra_state(self):
            return torch.full((5,), 3.0)

    module.inner.__class__ = Told


CHANGES = [
    replace, replace_data, free_and_make_again, resize, shrink, empty_the_memory_and_fill_it_again,
    change_the_type_in_place, halve, reshape, transpose, conjugate, negate_without_touching,
    look_at_a_part, exchange, tie, rename, leave_out, hook, say_it_in_the_instance,
    add_to_the_inner_state,
]  # fmt: skip


def save(session, step, items):
    """The step that was committed: a save never waits for Slots of another size."""
    patience = time.monotonic() + 60
    for attempt in itertools.count(step):
        if session.save(attempt, items):
            session.wait(attempt, "committed", 30)
            return attempt
        assert time.monotonic() < patience, f"no step from {step} on was captured"
        session.prepare(items)


@pytest.fixture(params=["with the functions of DLPack", "without them"])
def ways_to_look(request, monkeypatch):
    """Older versions of torch cannot be asked for many tensors at once."""
    if request.param == "without them":
        from libckpt.core import _views

        monkeypatch.setattr(_views, "exchange_api", lambda: None)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_two_saves_is_seen(job, ways_to_look, change):
    module = Parts()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    session = job().guard(optimizer)
    step = save(session, 1, {"module": module})
    step = save(session, step + 1, {"module": module})
    change(module)
    expected = state_of(module)
    step = save(session, step + 1, {"module": module})

    restored = session.restore(step=step).items["module"]
    found = {
        name: (part.dtype, tuple(part.shape), bytes_of(part)) for name, part in restored.items()
    }
    assert found == expected


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = self.first
        self.weight = self.first.weight
        self.none = None
        self.register_buffer("nothing", None)
        self.register_buffer("passing", torch.rand(2), persistent=False)


MODULES = {
    "tied": Tied,
    "sequence": lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)),
    "attention": lambda: torch.nn.TransformerEncoderLayer(8, 2),
    "recurrent": lambda: torch.nn.LSTM(3, 4, 2),
    "parametrised": lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3)),
    "spectral": lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3)),
    "hooked": lambda: torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3)),
    "pruned": lambda: prune.random_unstructured(torch.nn.Linear(3, 3), "weight", 0.5),
    "scripted": lambda: torch.jit.script(torch.nn.Linear(3, 3)),
    "compiled": lambda: torch.compile(torch.nn.Linear(3, 3)),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(torch.nn.Linear(3, 3)),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
def test_the_state_of_a_module_is_what_it_says_itself(make):
    from libckpt.adapters.torch import _modules

    module = make()
    expected = {name.replace("_orig_mod.", ""): t for name, t in module.state_dict().items()}
    found = _modules.state_of(module)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].data_ptr() == tensor.data_ptr(), name
        assert found[name].shape == tensor.shape
        assert found[name].dtype == tensor.dtype


def test_a_module_whose_classes_were_changed_says_its_state_itself(monkeypatch):
    from libckpt.adapters.torch import _modules

    said = {"another": torch.ones(3)}
    monkeypatch.setattr(torch.nn.Module, "state_dict", lambda *_, **__: said)
    assert _modules.state_of(torch.nn.Linear(3, 3)) == said


def test_an_array_that_changes_in_place_is_seen(job):
    array = numpy.arange(40_000, dtype=numpy.int64)
    session = job()
    step = save(session, 1, {"array": [array]})
    array.resize(60_000, refcheck=False)
    array[40_000:] = 7
    step = save(session, step + 1, {"array": [array]})
    assert numpy.array_equal(session.restore(step=step).items["array"][0], array)
    array.shape = (200, 300)
    step = save(session, step + 1, {"array": [array]})
    assert numpy.array_equal(session.restore(step=step).items["array"][0], array)


def test_two_tensors_that_want_one_name_are_both_kept(job):
    items = {"a": {"b": torch.rand(5)}, "a.b": torch.rand(6)}
    session = job()
    step = 0
    for _ in range(3):
        items["a"]["b"] += 1
        step = save(session, step + 1, items)
        restored = session.restore(step=step).items
        assert torch.equal(restored["a"]["b"], items["a"]["b"])
        assert torch.equal(restored["a.b"], items["a.b"])


def module_of(value):
    module = torch.nn.Module()
    module.b = torch.nn.Parameter(torch.full((4,), value))
    return module


@pytest.mark.parametrize("is_module", [True, False])
def test_tensors_that_want_one_name_are_restored_in_any_order(job, is_module):
    def part(value):
        return module_of(value) if is_module else {"b": torch.full((4,), value)}

    def content(a):
        return a.b if is_module else a["b"]

    saved = {"a.b": torch.full((4,), 5.0), "a": part(7.0)}
    session = job()
    step = save(session, 1, saved)
    for names in (["a.b", "a"], ["a", "a.b"]):
        fresh = {"a.b": torch.full((4,), 9.0), "a": part(0.0)}
        into = {name: fresh[name] for name in names}
        session.restore(into, step=step)
        assert torch.equal(into["a.b"], saved["a.b"])
        assert torch.equal(content(into["a"]), content(saved["a"]))


def test_a_part_is_not_taken_for_an_item_of_that_name(job):
    session = job()
    step = save(session, 1, {"a.b": torch.ones(4)})
    with pytest.raises(libckpt.InvalidArgument, match='part of item "a.b" and is one of item "a"'):
        session.restore({"a": module_of(3.0)}, step=step, strict=False)
    with pytest.raises(libckpt.InvalidArgument, match="restore before it failed"):
        session.save(step + 1, {"a": torch.ones(1)})


def test_small_tensors_at_a_new_address_each_time_change_nothing_that_is_registered(job):
    module, session = Parts(), job()
    told = []

    class Client:
        def __getattr__(self, name):
            return getattr(session._client, name)

        def update(self, *wanted):
            told.append(wanted)
            session._client.update(*wanted)

    session._tensors.client = Client()
    kept, step = [], 0
    for _ in range(5):
        kept.append((torch.rand(700), numpy.random.rand(9)))
        items = {"module": module, "drawn": {"state": kept[-1][0], "array": kept[-1][1]}}
        step = save(session, step + 1, items)
    assert len(told) == 2  # At the first save, and when they turned out to move.
    restored = session.restore(step=step).items["drawn"]
    assert torch.equal(restored["state"], kept[-1][0])
    assert numpy.array_equal(restored["array"], kept[-1][1])


def test_an_optimizer_whose_hooks_nobody_calls_has_nothing_left_for_later(job):
    """As torch.compile of some versions leaves the optimizers of torch."""

    class Unhooked(torch.optim.SGD):
        pass

    hooked = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    model = torch.nn.Linear(2, 2)
    optimizer = Unhooked(model.parameters(), lr=0.1)
    session = job().guard(optimizer, hooked)
    items = {"model": model, "other": hooked.param_groups[0]["params"][0]}
    session.save(1, items).captured.result(30)
    assert session._tensors.guarded_names() == {"model.weight", "model.bias", "other"}
    Unhooked.step = torch.optim.SGD.step.__wrapped__
    Unhooked.step.hooked = True
    session.save(2, items).captured.result(30)
    assert session._tensors.guarded_names() == {"other"}
