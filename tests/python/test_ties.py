"""Goal: tensors that are tied on one side only get what was saved, or are refused before a write.

Method: items with two tensors, which share memory when they are saved, when they are restored, or
then only in part, with equal and with other values.
"""

import json

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402
from libckpt.core import _arrays, _items, _names, _restore, _structure  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self, is_tied):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.rest = torch.nn.Linear(3, 3)
        if is_tied:
            self.head.weight = self.embedding.weight


def model(is_tied):
    return {"model": Model(is_tied)}


def tensors(is_tied):
    first = torch.randn(3)
    return {"a": first, "b": first if is_tied else torch.randn(3)}


def parameters(is_tied):
    first = torch.nn.Parameter(torch.randn(3))
    return {"in": {"a": first, "b": [first if is_tied else torch.nn.Parameter(torch.randn(3))]}}


def part(is_tied):
    first = torch.randn(6)
    return {"a": first, "b": first[2:5] if is_tied else torch.randn(3)}


def turned(is_tied):
    first = torch.randn(4, 3)
    return {"a": first, "b": first.t() if is_tied else torch.randn(3, 4)}


PAIRS = {model: ("model.embedding.weight", "model.head.weight"), tensors: ("a", "b"),
         parameters: ("in.a", "in.b.0"), part: ("a", "b"), turned: ("a", "b")}  # fmt: skip


def named(items):
    return _items.flatten(items)[1]


def values(items):
    return {name: tensor.detach().clone() for name, tensor in named(items).items()}


def are_equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def saved(job, items):
    session = job()
    session.save(1, items).captured.result(30)
    return session, values(items)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("make", PAIRS)
def test_the_value_of_tied_tensors_goes_into_each_of_two(job, make, strict):
    session, expected = saved(job, make(True))
    items = make(False)
    session.restore(items, strict=strict)
    assert are_equal(values(items), expected)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("make", PAIRS)
def test_equal_values_go_into_tied_tensors(job, make, strict):
    items, like = make(False), named(make(True))
    with torch.no_grad():
        for name, tensor in named(items).items():
            tensor.copy_(like[name])
    session, expected = saved(job, items)
    items = make(True)
    session.restore(items, strict=strict)
    assert are_equal(values(items), expected)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("make", PAIRS)
def test_two_values_are_refused_for_tied_tensors(job, make, strict):
    session, _ = saved(job, make(False))
    items = make(True)
    before = values(items)
    first, second = PAIRS[make]
    both = f'tensors "{first}" and "{second}" share memory here but differ there'
    with pytest.raises(libckpt.InvalidArgument, match=both) as refused:
        session.restore(items, strict=strict)
    if make is turned:  # Which only a copy of the second one shows.
        assert "overwrote a part of the tensors" in str(refused.value)
    else:
        assert "overwrote" not in str(refused.value)
        assert are_equal(values(items), before)


def targets_of(items):
    flattened = _items.flatten(items)
    arrays, names = _arrays.Arrays((), flattened[1]), _names.Names(None, items)
    return _restore.Targets(items, flattened, arrays, True, names, of_a_share=True)


@pytest.mark.parametrize("is_equal", [True, False])
def test_tensors_that_two_ranks_have_for_all_are_compared_before_they_are_filled(is_equal):
    there = tensors(False)
    if is_equal:
        there["b"].copy_(there["a"])
    structure = json.loads(_items.flatten(there)[0])
    here = tensors(True)
    targets = targets_of(here)
    (chosen,) = targets.choose(1, [("a", "F32", [3], "", None)], structure)
    assert chosen[1] == here["a"].data_ptr()
    nodes = {node["t"]: node for node in _structure.tensor_nodes(structure)}
    targets.complete(1, nodes, {"a": 0, "b": 1})
    here["a"].copy_(there["a"])  # As the library, and then another rank.
    targets.flat_bytes("b").copy_(there["b"].view(torch.uint8))
    assert torch.equal(here["a"], there["a"])
    if is_equal:
        assert torch.equal(targets.tensors(structure)["b"], there["b"])
        return
    with pytest.raises(libckpt.InvalidArgument, match='"a" and "b" share memory here'):
        targets.tensors(structure)


def test_tensors_that_one_rank_has_for_all_go_to_one_place():
    structure = json.loads(_items.flatten(tensors(False))[0])
    here = tensors(True)
    targets = targets_of(here)
    targets.choose(1, [], structure)
    nodes = {node["t"]: node for node in _structure.tensor_nodes(structure)}
    targets.complete(1, nodes, {"a": 1, "b": 1})  # That rank has compared them.
    assert targets.placed.keys() == {"a", "b"}


def test_tensors_of_two_shards_are_compared_before_they_are_filled():
    there = tensors(False)
    structure = json.loads(_items.flatten(there)[0])
    here = tensors(True)
    targets = targets_of(here)
    targets.choose(1, [("a", "F32", [3], "", None)], structure)
    targets.choose_more({"b"})(1, [("b", "F32", [3], "", None)], structure)
    here["a"].copy_(there["a"])
    assert targets.loaded.keys() == {"b"}
    with pytest.raises(libckpt.InvalidArgument, match='"a" and "b" share memory here'):
        targets.tensors(structure)
