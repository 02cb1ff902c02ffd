"""Goal: a leaf gets its own value back also where the paths of two leaves make one name.

Method: trees with keys that have dots, slashes and quotes in them, saved and restored whole and in
part, with and without a session, and as earlier versions saved them.
"""

import json

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

import libckpt  # noqa: E402
import libckpt.jax  # noqa: E402
from libckpt.jax import _capture, _leaves  # noqa: E402


def array(value):
    return jnp.full((3,), float(value))


def on_host(value):
    return numpy.full((3,), float(value))


def nothing(tree):
    return jax.tree.map(lambda leaf: leaf * 0, tree)


def are_equal(one, other):
    return jax.tree.structure(one) == jax.tree.structure(other) and jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()), one, other)
    )


def alike(make):
    """Four leaves, all of which would have the name a.b or one that a second such leaf gets."""
    return {"a.b": make(1), "a": {"b": make(2)}, "a.b'": make(3), "a.b''": make(4)}


PARTS = [("a.b",), ("a",), ("a.b'",), ("a.b''",), ("a.b", "a.b'"), ("a", "a.b''"), ("a", "a.b"),
         ("a.b", "a", "a.b'", "a.b''")]  # fmt: skip


@pytest.fixture
def opened(runtime):
    found = []

    def open_one(**options):
        found.append(libckpt.jax.Checkpointer("job", raise_on_error=True, **options))
        return found[-1]

    yield open_one
    for each in found:
        each.session.abandon()


@pytest.mark.parametrize("make", [array, on_host])
def test_each_leaf_of_one_name_gets_its_own_value_back(opened, tmp_path, make):
    tree, checkpointer = alike(make), opened(dir=tmp_path / "dir")
    checkpointer.save(1, tree, wait=20)
    checkpointer.wait_until_finished()
    for keys in PARTS:
        part = {key: tree[key] for key in keys}
        assert are_equal(checkpointer.restore(nothing(part)).tree, part), keys
    if make is array:  # Arrays of numpy come by the session only.
        checkpointer.close()
        for keys in PARTS:
            part = {key: tree[key] for key in keys}
            assert are_equal(libckpt.jax.load(tmp_path / "dir", nothing(part)), part), keys


def test_a_leaf_whose_path_was_not_saved_gets_no_other_value(opened):
    checkpointer = opened()
    checkpointer.save(1, {"a.b": {"c": array(1)}, "a": {"b.c": array(2)}}, wait=20)
    like = {"a": {"b": {"c": array(0)}}}
    with pytest.raises(libckpt.InvalidArgument, match="is not in the checkpoint"):
        checkpointer.restore(like)
    assert are_equal(checkpointer.restore(like, strict=False).tree, like)


@pytest.mark.parametrize("strict", [True, False])
def test_two_leaves_of_a_name_that_was_saved_once_are_refused(opened, strict):
    checkpointer = opened()
    checkpointer.save(1, {"a.b": array(1)}, wait=20)
    both = r"\"a.b\" is the name of both \['a', 'b'\] and \['a.b'\]"
    with pytest.raises(libckpt.InvalidArgument, match=both):
        checkpointer.restore(nothing({"a.b": array(1), "a": {"b": array(2)}}), strict=strict)
    assert are_equal(checkpointer.restore({"a": {"b": array(0)}}).tree, {"a": {"b": array(1)}})


def test_a_tree_of_an_earlier_version_is_read_by_names(opened, monkeypatch):
    tree, checkpointer = {"a.b": array(1), "a": {"b": array(2)}}, opened()
    with monkeypatch.context() as earlier:
        earlier.setattr(json, "dumps", lambda value, stock=json.dumps: stock(
            {} if value == _leaves.named(tree)[0].paths else value))  # fmt: skip
        checkpointer.save(1, tree, wait=20)
    assert are_equal(checkpointer.restore(nothing(tree)).tree, tree)


def test_the_names_of_ordinary_trees_are_their_paths():
    tree = {"layers": [{"w": 1}], "model.embed.w": 2, "": {"x": 3}}
    leaves, _ = _leaves.named(tree)
    assert set(leaves) == {"layers.0.w", "model.embed.w", ".x"}
    assert leaves.paths == {}
    items, _ = _capture.Capture().of(tree)
    assert set(items["jax"]) == {"arrays", "own", "leaves"}
