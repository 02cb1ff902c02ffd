"""Goal: an array that no rank asks for, where another number of ranks saved it, is named; what is
asked for and is not there is left as it is, where the restore may lack it.

Method: two ranks in one process save arrays in parts; one rank asks for some of them, from memory
and from files. Ranks that talk are threads with a Store of their own.
"""

import logging
import subprocess

import numpy
import pytest
from test_arrays import COLUMNS, ROWS, at_once, numbers, of_rank

import libckpt
from libckpt import Array, TensorShape
from libckpt.core import _arrays, _ranks, _unasked

SHAPE = (ROWS, COLUMNS)


@pytest.fixture(params=["memory", "storage"])
def one(request, job, tmp_path, programs):
    """The session of one rank, after two ranks saved "rows" and "flat" in parts."""
    options = {"dir": str(tmp_path / "checkpoints"), "save_storage_interval": 1}
    sessions = [job(rank=rank, world_size=2, **options) for rank in range(2)]
    at_once(sessions, lambda rank, each: each.save(1, {"n": rank}, arrays=of_rank(rank)))
    at_once(sessions, lambda _, each: each.wait(1, "durable"))
    for each in sessions:
        each.abandon()
    if request.param == "storage":
        subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                       capture_output=True)  # fmt: skip
    return job(**options)


def whole(name, shape=SHAPE, dtype=numpy.float32):
    return Array(name, numpy.zeros(shape, dtype), global_shape=shape, offset=(0,) * len(shape))


def test_an_array_that_is_not_asked_for_is_named(one, caplog):
    rows = whole("rows")
    with caplog.at_level(logging.WARNING, "libckpt"):
        restored = one.restore({"n": 0}, arrays=[rows])
    assert numpy.array_equal(rows.buffer, numbers(SHAPE))
    assert restored.unexpected == ["flat"]
    assert 'the checkpoint also has "flat", not given to restore here' in caplog.text
    caplog.clear()
    restored = one.restore({"n": 0}, arrays=[rows, whole("flat")])
    assert restored.unexpected == []
    assert "the checkpoint also has" not in caplog.text


def test_a_restore_of_values_alone_warns_of_nothing(one, caplog):
    restored = one.restore()
    assert restored.items == {"n": 0}
    assert "the checkpoint also has" not in caplog.text


def test_names_and_shapes_are_found(one):
    restored = one.restore(arrays=["rows", "flat"])
    assert sorted(restored.arrays) == ["flat", "rows"]
    for found in restored.arrays.values():
        assert numpy.array_equal(numpy.asarray(found), numbers(SHAPE))
    shapes = one.restore(shapes_only=True).arrays
    assert shapes == dict.fromkeys(["rows", "flat"], TensorShape(SHAPE, "F32"))


def test_without_strict_a_missing_array_stays_as_it_is(one, caplog):
    arrays = [whole("rows"), whole("flat"), whole("more", (3,))]
    with pytest.raises(libckpt.InvalidArgument, match="more"):
        one.restore(arrays=arrays)
    arrays[2].buffer[:] = 7
    with caplog.at_level(logging.WARNING, "libckpt"):
        restored = one.restore(arrays=arrays, strict=False)
    assert restored.missing == ["more"]
    assert "1 tensor(s) of this trainer are not in the step, and stay as they are: more" in (
        caplog.text
    )
    for array in arrays[:2]:
        assert numpy.array_equal(array.buffer, numbers(SHAPE))
    assert [*arrays[2].buffer] == [7, 7, 7]


@pytest.mark.parametrize("form", [(SHAPE, numpy.float64), ((ROWS + 1, COLUMNS), numpy.float32)])
def test_an_array_of_another_type_or_shape_is_refused_all_the_same(one, form):
    with pytest.raises(libckpt.InvalidArgument, match="rows"):
        one.restore(arrays=[whole("rows", *form)], strict=False)


class Store:
    def __init__(self):
        self._values, self.sent = {}, []

    def set(self, key, value):
        self._values[key] = value
        self.sent.append(value)

    def get(self, key):
        return self._values[key]

    def check(self, keys):
        return all(key in self._values for key in keys)

    def delete_key(self, key):
        del self._values[key]


def settled(asked, seen, saved_by=3, stored=(), parts=None):
    """(left, to log) of each rank, when they ask for these and see those; `stored`: whole ones;
    `parts`: (the name of the tensor, its shape), of which those that they see are parts."""
    store = Store()
    ranks = [_ranks.Ranks("job", rank, len(asked), store, "p") for rank in range(len(asked))]

    def settle(rank, ranks):
        found = _unasked.Unasked(_arrays.Arrays([whole(n, (1,)) for n in asked[rank]], {}), True)
        whole_ones = [(name, "F32", (1,), None, None) for name in stored]
        found.begin(whole_ones, {}, [(name, "F32", (1,), None, parts) for name in seen[rank]])
        answer = {"world_size": saved_by, "step": 7, "items_of": rank}
        try:
            found.settle(ranks, answer, {"of an item"}, bool(asked[rank]))
        except libckpt.Unsupported as error:
            return str(error)
        return found.left, found.to_log

    return at_once(ranks, settle), store


def test_ranks_name_what_none_of_them_asked_for():
    found, _ = settled([["a"], ["b"]], [["a", "b", "c", "of an item"], ["a", "b", "d"]])
    assert found == [(["c", "d"], ["c", "d"]), (["c", "d"], [])]


def test_ranks_that_ask_for_all_exchange_no_name():
    found, store = settled([["a", "b"], ["a", "b"]], [["a", "b"], ["a", "b"]])
    assert found == [([], [])] * 2
    assert set(store.sent) == {"[[], true, null]", "[[], true, false]"}


def test_as_many_ranks_go_on_with_their_own_whole_arrays():
    found, _ = settled([["a"], ["b"]], [["a", "b"], ["b"]], saved_by=2)
    assert found == [(["b"], ["b"]), ([], [])]


def test_as_many_ranks_may_ask_for_one_anothers_parts():
    larger = ("b", (8,))
    found, _ = settled([["a"], ["b"]], [["b[0:4]"], ["b[4:8]"]], saved_by=2, parts=larger)
    assert found == [([], [])] * 2
    found, _ = settled([["a"], ["a"]], [["b[0:4]"], ["b[4:8]"]], saved_by=2, parts=larger)
    assert found == [(["b"], ["b"]), (["b"], [])]


def test_ranks_that_ask_for_nothing_are_not_warned():
    found, _ = settled([[], []], [["a"], ["b"]])
    assert found == [(["a", "b"], []), (["a", "b"], [])]


def test_whole_arrays_of_several_ranks_are_refused_by_another_number():
    refusals, _ = settled([["a", "b"], ["b"]], [["a", "b"], ["b"]], stored=["b"])
    assert all('step 7: array "b" was saved as a whole by several' in each for each in refusals)
    found, _ = settled([["a"], ["b"]], [["a", "b"], ["a", "b"]], stored=["a", "b"])
    assert found == [([], [])] * 2
