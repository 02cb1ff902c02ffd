"""Goal: a rank that holds several boxes or ranges of one tensor names each after its place, and any
ranks restore them: under the tensor's own name, or by other boxes and ranges. Ranks that swap what
they hold get it, too. Ranks that contradict each other are named at once.

Method: two ranks in one process save a tensor in parts; as many ranks, or one, restore it, from
memory and from files.
"""

import subprocess

import numpy
import pytest
from test_arrays import at_once

import libckpt
from libckpt import Array

SHAPE = (8, 6)
VALUES = numpy.arange(48, dtype=numpy.float32).reshape(SHAPE)


def box(rows, columns, named=None):
    """A part of VALUES as an array that is named after it, or after a box that it lies in."""
    (top, bottom), (left, right) = rows, columns
    name = named or f"w[{top}:{bottom},{left}:{right}]"
    return Array(name, VALUES[top:bottom, left:right].copy(), global_shape=SHAPE,
                 offset=(top, left))  # fmt: skip


def span(begin, end, named=None):
    return Array(named or f"w[{begin}:{end}]", VALUES.reshape(-1)[begin:end].copy(),
                 global_shape=SHAPE, flat=begin)  # fmt: skip


def emptied(arrays):
    for array in arrays:
        array.buffer[:] = -1
    return arrays


def check(arrays):
    for array in arrays:
        begin = array.offset if array.flat is None else array.flat
        if array.flat is None:
            (top, left), (rows, columns) = begin, array.buffer.shape
            expected = VALUES[top : top + rows, left : left + columns]
        else:
            expected = VALUES.reshape(-1)[begin : begin + array.buffer.size]
        assert numpy.array_equal(array.buffer, expected), array.name


SAVED = {
    "boxes": [
        [box((0, 4), (0, 2)), box((0, 4), (2, 6)), box((6, 8), (0, 6), "w[6:8]")],
        [box((4, 6), (0, 3)), box((4, 6), (3, 6), "w[0:8,3:6]")],
    ],
    "ranges": [[span(0, 7), span(20, 40)], [span(7, 20), span(40, 48)]],
    "all of it": [[box((0, 8), (0, 6), "w[0:8]")], []],
    "one name": [[box((0, 4), (0, 6), "w")], [span(24, 48, "w")]],
}

WANTED = {
    "all of it": [[span(0, 48)], [box((0, 8), (0, 6))]],
    "whole ones": [[box((0, 8), (0, 6), "w")], [box((0, 8), (0, 6), "w")]],
    "one whole one": [[], [box((0, 8), (0, 6), "w")]],
    "whole": [[box((0, 8), (0, 6), "w")]],
    "columns": [[box((0, 8), (0, 1)), box((0, 8), (3, 6))], [box((0, 8), (1, 3), "w")]],
    "ranges": [[span(40, 48), span(0, 3)], [span(3, 30), span(30, 40, "w[28:40]")]],
}


@pytest.fixture(params=["memory", "storage", "path"])
def source(request):
    return request.param


OFTEN = [("boxes", "whole"), ("boxes", "columns"), ("boxes", "ranges"), ("ranges", "columns"),
         ("ranges", "all of it"), ("all of it", "all of it"), ("all of it", "columns"),
         ("boxes", "whole ones"), ("ranges", "one whole one"), ("one name", "whole ones"),
         ("all of it", "one whole one")]  # fmt: skip


@pytest.mark.parametrize(("saved", "wanted"), OFTEN)
def test_parts_come_from_whatever_names_they_have(job, tmp_path, programs, source, saved, wanted):
    options = {"dir": str(tmp_path / "run"), "save_storage_interval": 1}
    sessions = [job(rank=rank, world_size=2, **options) for rank in range(2)]
    at_once(sessions, lambda rank, each: each.save(1, {"n": rank}, arrays=SAVED[saved][rank]))
    at_once(sessions, lambda _, each: each.wait(1, "durable"))
    for each in sessions:
        each.abandon()
    if source != "memory":
        subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                       capture_output=True)  # fmt: skip
    by_rank = [emptied(arrays) for arrays in WANTED[wanted]]
    path = tmp_path / "run" if source == "path" else None
    sessions = [job(rank=rank, world_size=len(by_rank), **options) for rank in range(len(by_rank))]
    found = at_once(
        sessions, lambda rank, each: each.restore({"n": 0}, arrays=by_rank[rank], path=path)
    )
    for arrays in by_rank:
        check(arrays)
    # These ranks cannot talk: one that asks for nothing does not know that others do.
    asking = [each.unexpected for each, arrays in zip(found, by_rank, strict=True) if arrays]
    assert asking == [[]] * len(asking)


def test_a_tensor_in_parts_is_found_by_its_name(job):
    sessions = [job(rank=rank, world_size=2) for rank in range(2)]
    at_once(sessions, lambda rank, each: each.save(1, {}, arrays=SAVED["boxes"][rank]))
    at_once(sessions, lambda _, each: each.wait(1, "committed"))
    for each in sessions:
        each.abandon()
    alone = job()
    restored = alone.restore(arrays=["w"])
    assert numpy.array_equal(numpy.asarray(restored.arrays["w"]), VALUES)
    assert restored.unexpected == []


@pytest.mark.parametrize("dead", [False, True])
def test_a_rank_gets_all_of_what_it_saved_in_parts(job, tmp_path, programs, dead):
    options = {"dir": str(tmp_path / "run"), "save_storage_interval": 1}
    with job(**options) as session:
        session.save(1, {}, arrays=[box((0, 3), (0, 6)), span(18, 48)])
        session.wait(1, "durable")
        session.abandon()
    if dead:
        subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                       capture_output=True)  # fmt: skip
    session = job(**options)
    wanted = emptied([box((0, 8), (0, 6), "w")])
    restored = session.restore({}, arrays=wanted)
    check(wanted)
    assert (restored.missing, restored.unexpected) == ([], [])
    assert numpy.array_equal(numpy.asarray(session.restore(arrays=["w"]).arrays["w"]), VALUES)


@pytest.mark.parametrize("source", ["memory", "storage"])
def test_stages_that_swap_their_ranks_get_their_parts(job, tmp_path, programs, source):
    options = {"dir": str(tmp_path / "run"), "save_storage_interval": 1, "world_size": 2}

    def stage(number, value):
        return Array(f"layer{number}", numpy.full(1000, value), global_shape=(2000,), offset=(0,))

    sessions = [job(rank=rank, **options) for rank in range(2)]
    at_once(sessions, lambda rank, each: each.save(1, {}, arrays=[stage(rank, 1.0 + rank)]))
    at_once(sessions, lambda _, each: each.wait(1, "durable"))
    for each in sessions:
        each.abandon()
    if source == "storage":
        subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                       capture_output=True)  # fmt: skip
    sessions = [job(rank=rank, **options) for rank in range(2)]
    swapped = [stage(1 - rank, 0.0) for rank in range(2)]
    at_once(sessions, lambda rank, each: each.restore(arrays=[swapped[rank]]))
    for rank in range(2):
        assert (swapped[rank].buffer == 2.0 - rank).all()


@pytest.mark.parametrize("source", ["memory", "path"])
def test_renamed_reaches_the_names_of_parts(job, tmp_path, source):
    options = {"dir": str(tmp_path / "run"), "save_storage_interval": 1, "world_size": 2}
    sessions = [job(rank=rank, **options) for rank in range(2)]
    at_once(sessions, lambda rank, each: each.save(1, {}, arrays=SAVED["boxes"][rank]))
    at_once(sessions, lambda _, each: each.wait(1, "durable"))
    for each in sessions:
        each.abandon()
    alone = job(dir=options["dir"])
    wanted = emptied([box((0, 4), (0, 6), "v[0:4]"), box((4, 8), (0, 6), "v[4:8]")])
    path = tmp_path / "run" if source == "path" else None
    restored = alone.restore(arrays=wanted, renamed={"w": "v"}, path=path)
    check(wanted)
    assert (restored.unexpected, restored.missing) == ([], [])


def test_ranks_that_contradict_each_other_are_named_at_once(job):
    sessions = [job(rank=rank, world_size=2) for rank in range(2)]
    parts = [Array("w", numpy.zeros(4, dtype), global_shape=(8,), offset=(4 * rank,))
             for rank, dtype in enumerate([numpy.float32, numpy.float64])]  # fmt: skip
    at_once(sessions, lambda rank, each: each.save(1, {}, arrays=[parts[rank]]))
    at_once(sessions, lambda _, each: each.wait(1, "committed"))
    for each in sessions:
        each.abandon()
    alone = job()
    whole = Array("w", numpy.zeros(8, numpy.float32), global_shape=(8,), offset=(0,))
    with pytest.raises(
        libckpt.InvalidArgument,
        match=r'"w" is F32 \[8\] as rank 0 saved it, and F64 \[8\] as rank 1 did',
    ):
        alone.restore(arrays=[whole])


def test_all_ranks_hear_why_one_of_them_refused(job):
    sessions = [job(rank=rank, world_size=2) for rank in range(2)]
    at_once(sessions, lambda rank, each: each.save(1, {"n": rank}))
    at_once(sessions, lambda _, each: each.wait(1, "committed"))
    for each in sessions:
        each.abandon()

    def restore(rank, session):
        with pytest.raises(libckpt.InvalidArgument) as refused:
            session.restore({"n": 0} if rank == 0 else {"m": 0})
        return str(refused.value)

    said = at_once([job(rank=rank, world_size=2) for rank in range(2)], restore)
    assert all('item "m" was not saved' in each for each in said), said
