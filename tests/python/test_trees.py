"""Goal: what a save remembers of containers never shows in what the next one saves.

Method: nested containers of every kind change at random, bit by bit; what is taken of them with the
memory of the saves before must be what is taken without any. Then the usual changes are made to an
optimizer's state, and no tensor may be looked at one by one.
"""

import collections
import copy
import os
import random

import pytest

torch = pytest.importorskip("torch")

from libckpt import _native
from libckpt.core import _items, _trees, _views  # noqa: E402

ROUNDS = 300
LEAVES = [None, True, False, 0, 1, -1, 1 << 40, 1 << 3000, 0.0, -0.0, 1.0, 1e-300, float("nan"),
          float("inf"), "", "lr", '{"v":1}', '","v":1}', "\0\u2028é", "a.b", "a/b//c"]  # fmt: skip
KEYS = ["a", "b", "v", '{"v":1}', "a.b", "", 0, 1, -7, "0"]
TENSORS = [lambda: torch.ones(3), lambda: torch.ones(3, 1), lambda: torch.ones(()),
           lambda: torch.ones(3, dtype=torch.int32), lambda: torch.ones(0),
           lambda: torch.nn.Parameter(torch.ones(3)), lambda: torch.ones(2, 3).t()]  # fmt: skip


class Odd:
    """No tree knows it: it has a state of its own."""

    def __init__(self):
        self.state = {"t": torch.ones(2), "n": 3}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def made(chance, depth=0):
    kind = chance.choice("tttlll" if depth == 4 else "ttlldddiosu")
    if kind == "t":
        return chance.choice(TENSORS)()
    if kind == "l":
        return chance.choice(LEAVES)
    if kind == "o":
        return Odd() if chance.random() < 0.2 else chance.choice(LEAVES)
    parts = [made(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind in "su":
        return parts if kind == "s" else tuple(parts)
    keys = chance.sample(KEYS, len(parts))
    of_kind = dict if kind == "d" else collections.OrderedDict
    return of_kind(zip(keys, parts, strict=True))


def containers_in(value):
    if isinstance(value, Odd):
        value = value.state
    if isinstance(value, (dict, list)):
        yield value
    for part in (value.values() if isinstance(value, dict) else value
                 if isinstance(value, (list, tuple)) else ()):  # fmt: skip
        yield from containers_in(part)


def change(chance, items):
    value = chance.choice(list(containers_in(items))[1:] or [items])
    new = made(chance, 3)
    if isinstance(value, list):
        if value and chance.random() < 0.7:
            value[chance.randrange(len(value))] = new
        else:
            value.append(new)
        return
    if value and chance.random() < 0.7:
        value[chance.choice(list(value))] = new
    elif value and chance.random() < 0.3:
        del value[chance.choice(list(value))]
    elif isinstance(value, collections.OrderedDict) and value:
        value.move_to_end(chance.choice(list(value)), last=chance.random() < 0.5)
    elif value is not items:
        value[chance.choice(KEYS)] = new


def assert_as_without_memory(items, known):
    text, tensors, _ = _items.flatten(items, known=known)
    wanted_text, wanted_tensors, _ = _items.flatten(items)
    assert text == wanted_text
    assert list(tensors) == list(wanted_tensors)
    assert all(is_the_same(tensors[name], wanted_tensors[name]) for name in wanted_tensors)


def is_the_same(one, other):
    """The same tensor, or what state_dict() makes of it."""
    return one is other or (one.data_ptr() == other.data_ptr() and one.shape == other.shape
                            and one.dtype == other.dtype)  # fmt: skip


@pytest.mark.parametrize("number", range(5))
def test_whatever_changes_the_memory_of_it_does_not_show(number, monkeypatch):
    found, stock = [], _trees.Trees.find
    monkeypatch.setattr(
        _trees.Trees, "find", lambda *given: found.append(stock(*given)) or found[-1]
    )
    seed = f"{os.environ.get('CKPT_PYTHON_SEED', '1')}/{number}"
    chance, known = random.Random(seed), _items.Known()
    items = {"a": made(chance), "b": {"c": made(chance)}, "d": [made(chance) for _ in range(4)]}
    for round_number in range(ROUNDS):
        if round_number % 50 == 49:
            known = _items.Known()  # Else all of it had been another one too often.
        for _ in range(chance.choice([0, 1, 1, 2, 5])):
            change(chance, items)
        try:
            assert_as_without_memory(items, known)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, round {round_number}: {items}") from error
    if _views.exchange_api() is not None:
        assert sum(each is not None for each in found) > ROUNDS // 2


@pytest.fixture
def looks(monkeypatch):
    """Names of the tensors that are looked at one by one."""
    seen, stock = [], _items.Flattener._tensor

    def look(taker, name, value):
        seen.append(name)
        return stock(taker, name, value)

    monkeypatch.setattr(_items.Flattener, "_tensor", look)
    return seen


def trained(**options):
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(5)])
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step():
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler.step()

    step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}, step


@pytest.mark.skipif(_views.exchange_api() is None, reason="this torch tells nothing of tensors")
def test_from_step_to_step_no_tensor_of_an_optimizer_is_looked_at(looks):
    (items, step), known = trained(), _items.Known()
    _items.flatten(items, known=known)
    assert len(looks) == 10 + 30
    for _ in range(20):
        looks.clear()
        step()
        items["optimizer"].param_groups[0]["weight_decay"] *= 0.9
        text, tensors, _ = _items.flatten(items, known=known)
        assert not looks
        assert (text, list(tensors)) == (lambda t: (t[0], list(t[1])))(_items.flatten(items))


@pytest.mark.skipif(_views.exchange_api() is None, reason="this torch tells nothing of tensors")
def test_a_list_that_grows_does_not_make_the_rest_be_looked_at(looks):
    (training, step), known = trained(), _items.Known()
    items = {"all": {**training, "state": dict(training["model"].state_dict()), "losses": []}}
    for _ in range(20):
        items["all"]["losses"].append(0.5)
        looks.clear()
        step()
        assert_as_without_memory(items, known)
    looks.clear()
    _items.flatten(items, known=known)
    assert not looks


def test_a_known_tree_is_recognised_and_no_other():
    def text_of(leaf):
        return _items._text_of_plain(leaf)

    def tree_of(value, text):
        return _native.Tree(_views.exchange_api(), torch.Tensor, text_of, value, text)

    value = {"a": [1, (2.5, "x")], "b": {7: None}}
    text = _items.Flattener().flatten("item", value)
    tree = tree_of(value, text)
    if _views.exchange_api() is not None:
        assert tree.is_known()
        assert tree.find(copy.deepcopy(value)) == ([], text)
        assert tree.find({"a": [1, (2.5, "y")], "b": {7: None}})[1] == text.replace('"x"', '"y"')
    for other in ({}, [], {"a": [1, (2.5, "x")]}, {"a": [1, (2, "x")], "b": {7: None}},
                  {"a": [True, (2.5, "x")], "b": {7: None}},
                  {"b": {7: None}, "a": [1, (2.5, "x")]},
                  {"a": [1, (2.5, "x")], "b": {"7": None}}):  # fmt: skip
        assert tree.find(other) is None, other
    assert not tree_of({"a": object()}, text).is_known()
    assert not tree_of({"a": 8}, text).is_known()  # The text is not that of it.


def test_a_text_that_cannot_be_made_leaves_nothing_half_changed():
    is_broken = []

    def text_of(leaf):
        if is_broken and leaf == 5:
            raise KeyboardInterrupt
        return _items._text_of_plain(leaf)

    value = [1, 2, 3]
    text = _items.Flattener().flatten("item", value)
    tree = _native.Tree(_views.exchange_api(), torch.Tensor, text_of, value, text)
    is_broken.append(True)
    if tree.is_known():
        with pytest.raises(KeyboardInterrupt):
            tree.find([4, 5, 6])
    assert not tree.is_known()
    assert tree.find([1, 2, 3]) is None
