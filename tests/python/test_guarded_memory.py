"""Goal: which memory only guarded optimizers change is known in one call, and never out of date.

Method: what the call tells is compared with what each tensor says of itself, for tensors of all
kinds and after each kind of change.
"""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from libckpt.adapters.torch import _guarded_memory  # noqa: E402
from libckpt.core import _views  # noqa: E402


class Kinds(torch.optim.Optimizer):
    """Its state has tensors of all kinds, and what are none."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "step": 3, "none": None, "lists": [torch.ones(3)], "empty": torch.ones(0),
                "scalar": torch.ones(()), "complex": torch.ones(3, dtype=torch.complex64),
                "bool": torch.ones(3, 2, dtype=torch.bool), "bf16": torch.ones(3).bfloat16(),
                "part": torch.ones(4, 4)[1:3], "transposed": torch.ones(2, 3).t(),
                "fp8": torch.ones(5).to(torch.float8_e4m3fn), "moment": torch.rand(7),
            }  # fmt: skip
        self.state["all"] = torch.ones(2)  # No dictionary.


@pytest.fixture
def optimizers():
    layers = [torch.nn.Linear(3, 2), torch.nn.Linear(0, 2), torch.nn.Linear(4, 4)]
    return [Kinds(layer.parameters()) for layer in layers]


def references(optimizers):
    return [weakref.ref(optimizer) for optimizer in optimizers]


def test_one_call_gives_the_same_ranges_as_asking_each_tensor(optimizers):
    given = references(optimizers)
    assert _guarded_memory.GuardedMemory().ranges(given) == _guarded_memory.ranges_one_by_one(given)
    assert _guarded_memory.GuardedMemory().ranges([]) == {}


def test_as_long_as_nothing_moves_it_is_the_same_dictionary(optimizers):
    owned, given = _guarded_memory.GuardedMemory(), references(optimizers)
    first = owned.ranges(given)
    assert (owned.ranges(given) is first) == (_views.exchange_api() is not None)


def replace_state(optimizers):
    state = optimizers[0].state[optimizers[0].param_groups[0]["params"][0]]
    state["moment"] = torch.rand(70)


def replace_data(optimizers):
    optimizers[2].param_groups[0]["params"][0].data = torch.rand(9, 9)


def drop_optimizer(optimizers):
    optimizers.pop()
    gc.collect()


def add_group(optimizers):
    optimizers[1].add_param_group({"params": [torch.nn.Parameter(torch.rand(5))]})


def may_be_replayed(optimizers):
    optimizers[0].param_groups[0]["capturable"] = True


def has_a_tensor_that_tells_nothing(optimizers):
    parameter = optimizers[0].param_groups[0]["params"][0]
    optimizers[0].state[parameter]["sparse"] = torch.ones(3).to_sparse()


@pytest.mark.parametrize(
    "change", [replace_state, replace_data, drop_optimizer, add_group, may_be_replayed]
)
def test_a_change_is_seen(optimizers, change):
    owned, given = _guarded_memory.GuardedMemory(), references(optimizers)
    before = owned.ranges(given)
    change(optimizers)
    after = owned.ranges(given)
    assert after == _guarded_memory.ranges_one_by_one(given) != before


def test_where_it_cannot_be_told_in_one_call_each_tensor_is_asked(optimizers, monkeypatch):
    asked = []
    monkeypatch.setattr(
        _guarded_memory, "ranges_one_by_one", lambda given: asked.append(given) or {1: 2}
    )
    has_a_tensor_that_tells_nothing(optimizers)
    assert _guarded_memory.GuardedMemory().ranges(references(optimizers)) == {1: 2}
    assert asked
