"""Goal: a part of a larger tensor is found again by its name and place, whichever ranks saved it.

Method: two ranks in one process save parts of some tensors; the same ranks, and then one rank, ask
for other parts. Each element of a tensor carries its own number.
"""

import functools
import subprocess
import threading
import weakref

import numpy
import pytest

import libckpt
from libckpt import Array

ROWS, COLUMNS = 12, 500


def numbers(shape):
    return numpy.arange(numpy.prod(shape), dtype=numpy.float32).reshape(shape)


def of_rank(rank, make=numpy.copy):
    """The arrays of each of two ranks: some rows, a stretch of all elements, and its own vector."""
    whole = numbers((ROWS, COLUMNS))
    begin, end = (0, 5) if rank == 0 else (5, ROWS)
    cut = 1234
    flat = whole.reshape(-1)[:cut] if rank == 0 else whole.reshape(-1)[cut:]
    return [
        Array("rows", make(whole[begin:end]), global_shape=whole.shape, offset=(begin, 0)),
        Array("flat", make(flat), global_shape=whole.shape, flat=0 if rank == 0 else cut),
    ]


def at_once(sessions, call):
    """The answer of call(rank, session) for each, asked at the same time."""
    answers = [None] * len(sessions)

    def ask(rank):
        answers[rank] = call(rank, sessions[rank])

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.fixture
def ranks(job, tmp_path):
    def open_sessions(count):
        return [
            job(dir=str(tmp_path / "checkpoints"), save_storage_interval=1, rank=rank,
                world_size=count)
            for rank in range(count)
        ]  # fmt: skip

    return open_sessions


def save(sessions, step=1):
    at_once(sessions, lambda rank, session: session.save(step, {"n": rank}, arrays=of_rank(rank)))
    at_once(sessions, lambda _, session: session.wait(step, "durable"))


def lose_memory(sessions, programs):
    for session in sessions:
        session.abandon()
    subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                   capture_output=True)  # fmt: skip


def test_the_same_ranks_have_their_parts_again(ranks):
    sessions = ranks(2)
    save(sessions)
    found = [of_rank(rank, numpy.zeros_like) for rank in range(2)]
    answers = at_once(sessions, lambda rank, session: session.restore(arrays=found[rank]))
    assert [answer.source for answer in answers] == ["own_memory"] * 2
    assert [answer.items for answer in answers] == [{"n": 0}, {"n": 1}]
    for rank in range(2):
        for array, expected in zip(found[rank], of_rank(rank), strict=True):
            assert numpy.array_equal(array.buffer, expected.buffer), array.name


@pytest.mark.parametrize("source", ["own_memory", "storage"])
def test_the_same_ranks_have_other_parts(ranks, programs, source):
    """As on another mesh. The second rank asks for what it saved."""
    sessions = ranks(2)
    save(sessions)
    for session in sessions:
        session.abandon()
    if source == "storage":
        lose_memory([], programs)
    sessions = ranks(2)
    whole = numbers((ROWS, COLUMNS))
    found = [
        [Array("rows", numpy.zeros((9, COLUMNS), numpy.float32), global_shape=whole.shape,
               offset=(3, 0)),
         Array("flat", numpy.zeros(2000, numpy.float32), global_shape=whole.shape, flat=1000)],
        of_rank(1, numpy.zeros_like),
    ]  # fmt: skip
    answers = at_once(sessions, lambda rank, session: session.restore(arrays=found[rank]))
    assert answers[0].source == source
    assert [answer.step for answer in answers] == [1] * 2
    assert [answer.items for answer in answers] == [{"n": 0}, {"n": 1}]
    assert numpy.array_equal(found[0][0].buffer, whole[3:])
    assert numpy.array_equal(found[0][1].buffer, whole.reshape(-1)[1000:3000])
    for array, expected in zip(found[1], of_rank(1), strict=True):
        assert numpy.array_equal(array.buffer, expected.buffer), array.name
    at_once(sessions, lambda rank, one: one.save(2, {"n": rank}, arrays=found[rank]))
    at_once(sessions, lambda _, one: one.wait(2, "committed"))


def test_another_number_of_ranks_has_any_parts(ranks, programs):
    sessions = ranks(2)
    save(sessions)
    lose_memory(sessions, programs)
    (session,) = ranks(1)
    whole = numbers((ROWS, COLUMNS))
    rows, flat, columns = numpy.zeros_like(whole), numpy.zeros(2000, numpy.float32), None
    restored = session.restore(
        arrays=[
            Array("rows", rows, global_shape=whole.shape, offset=(0, 0)),
            Array("flat", flat, global_shape=whole.shape, flat=1000),
        ]
    )
    assert (restored.step, restored.world_size) == (1, 2)
    assert numpy.array_equal(rows, whole)
    assert numpy.array_equal(flat, whole.reshape(-1)[1000:3000])
    columns = numpy.zeros((ROWS, 7), numpy.float32)
    session.restore(arrays=[Array("rows", columns, global_shape=whole.shape, offset=(0, 100))])
    assert numpy.array_equal(columns, whole[:, 100:107])
    # It goes on as what it is now.
    now = Array("rows", rows, global_shape=whole.shape, offset=(0, 0))
    assert session.save(2, {}, arrays=[now])
    session.wait(2, "durable")


def test_other_numbers_of_ranks_have_any_parts_from_memory(job):
    """2 -> 1 -> 3, each time after all trainers died."""
    sessions = [job(rank=rank, world_size=2) for rank in range(2)]
    at_once(sessions, lambda rank, one: one.save(1, {"n": rank}, arrays=of_rank(rank)))
    at_once(sessions, lambda _, one: one.wait(1, "committed"))
    for session in sessions:
        session.abandon()
    whole = numbers((ROWS, COLUMNS))
    found = numpy.zeros_like(whole)
    session = job()
    items = {"n": 7}
    restored = session.restore(
        items, arrays=[Array("rows", found, global_shape=whole.shape, offset=(0, 0))]
    )
    assert (restored.step, restored.source, restored.world_size) == (1, "own_memory", 2)
    assert numpy.array_equal(found, whole)
    assert restored.items["n"] == 0
    found += 1
    assert session.save(
        2, items, arrays=[Array("rows", found, global_shape=whole.shape, offset=(0, 0))]
    )
    session.wait(2, "committed")
    session.abandon()
    sessions = [job(rank=rank, world_size=3) for rank in range(3)]
    parts = [numpy.zeros((ROWS // 3, COLUMNS), numpy.float32) for _ in sessions]
    answers = at_once(
        sessions,
        lambda rank, one: one.restore(
            arrays=[Array("rows", parts[rank], global_shape=whole.shape,
                          offset=(rank * ROWS // 3, 0))]
        ),
    )  # fmt: skip
    assert [(each.step, each.world_size) for each in answers] == [(2, 1)] * 3
    assert numpy.array_equal(numpy.concatenate(parts), whole + 1)


@pytest.mark.parametrize(("saved_by", "count"), [(2, 1), (4, 2), (3, 2), (2, 4)])
def test_arrays_that_one_rank_has_as_a_whole_are_found_by_any_other(job, saved_by, count):
    def own(rank, world_size, value=None):
        names = range(12 * rank // world_size, 12 * (rank + 1) // world_size)
        return [Array(f"a{n}", numpy.full(5, n if value is None else value, numpy.float32),
                      global_shape=(5,), flat=0) for n in names]  # fmt: skip

    sessions = [job(rank=rank, world_size=saved_by) for rank in range(saved_by)]
    at_once(sessions, lambda rank, one: one.save(1, {"n": rank}, arrays=own(rank, saved_by)))
    at_once(sessions, lambda _, one: one.wait(1, "committed"))
    for session in sessions:
        session.abandon()
    sessions = [job(rank=rank, world_size=count) for rank in range(count)]
    found = [own(rank, count, -1) for rank in range(count)]
    at_once(sessions, lambda rank, one: one.restore(arrays=found[rank]))
    for array in (array for arrays in found for array in arrays):
        assert [*array.buffer] == [int(array.name[1:])] * 5, array.name


def test_the_order_of_dimensions_in_memory_may_differ(ranks, programs):
    torch = pytest.importorskip("torch")
    shape = (2, 6, 5, 4)
    whole = torch.arange(240, dtype=torch.float32).reshape(shape)
    last = whole.clone(memory_format=torch.channels_last)
    sessions = ranks(2)
    halves = [
        Array("x", whole[:, :2].contiguous(), global_shape=shape, offset=(0, 0, 0, 0)),
        Array("x", last[:, 2:].clone(memory_format=torch.channels_last), global_shape=shape,
              offset=(0, 2, 0, 0)),
    ]  # fmt: skip
    at_once(sessions, lambda rank, session: session.save(1, {}, arrays=[halves[rank]]))
    at_once(sessions, lambda _, session: session.wait(1, "durable"))
    lose_memory(sessions, programs)
    (session,) = ranks(1)
    for found in (torch.zeros(shape), torch.zeros(shape).to(memory_format=torch.channels_last)):
        session.restore(arrays=[Array("x", found, global_shape=shape, offset=(0,) * 4)])
        assert torch.equal(found, whole)


def test_arrays_that_cannot_be_are_refused_by_name(ranks, programs):
    with pytest.raises(libckpt.InvalidArgument, match='array "a": give offset, or flat'):
        Array("a", numpy.zeros(3), global_shape=(6,))
    with pytest.raises(libckpt.InvalidArgument, match='array "a": its buffer is a list'):
        Array("a", [1, 2], global_shape=(2,), flat=0)
    sessions = ranks(2)
    far = Array("a", numpy.zeros(3), global_shape=(6,), flat=4)
    with pytest.raises(libckpt.InvalidArgument, match='"a"'):
        sessions[0].save(1, {}, arrays=[far])
    good = Array("a", numpy.zeros(3), global_shape=(6,), flat=3)
    with pytest.raises(libckpt.InvalidArgument, match="twice"):
        sessions[0].save(1, {}, arrays=[good, good])
    save(sessions)
    answers = []

    def restore(rank, session):
        try:
            session.restore(arrays=[*of_rank(rank), good])
        except libckpt.CheckpointError as error:
            answers.append(str(error))

    at_once(sessions, restore)
    assert any('it has no array "a"' in answer for answer in answers), answers
    lose_memory(sessions, programs)
    (session,) = ranks(1)
    missing = Array("rows", numpy.zeros((ROWS, 1), numpy.float32), global_shape=(ROWS + 1, COLUMNS),
                    offset=(0, 0))  # fmt: skip
    with pytest.raises(libckpt.CheckpointError, match='"rows"'):
        session.restore(arrays=[missing])


def test_arrays_that_are_forgotten_are_told(ranks, programs, caplog):
    sessions = ranks(2)
    save(sessions)
    caplog.clear()
    given = [iter(of_rank(rank)) for rank in range(2)]  # As a generator, which serves once.

    def save_once_more(rank, session, step):
        session.save(step, {"n": rank}, arrays=given[rank])

    for step in (2, 3):
        at_once(sessions, functools.partial(save_once_more, step=step))
    assert 'step 3: 2 array(s) of the call before are not given, "flat" first' in caplog.text
    at_once(sessions, lambda _, session: session.wait(3, "durable"))
    save(sessions, 4)
    for count in (2, 1):
        lose_memory(sessions, programs)
        sessions = ranks(count)
        caplog.clear()
        at_once(sessions, lambda _, session: session.restore({"n": 0}))
        assert "the checkpoint also has" in caplog.text
        assert '"flat", "rows", not given to restore here' in caplog.text


def test_one_memory_is_not_filled_from_two_arrays(ranks, programs):
    sessions = ranks(2)

    def halves(rank, session):
        whole = numbers((ROWS, COLUMNS))[rank * 6 : rank * 6 + 6]
        place = {"global_shape": (ROWS, COLUMNS), "offset": (rank * 6, 0)}
        session.save(1, {}, arrays=[Array("a", whole, **place), Array("b", whole + 1, **place)])

    at_once(sessions, halves)
    at_once(sessions, lambda _, session: session.wait(1, "durable"))
    lose_memory(sessions, programs)
    (session,) = ranks(1)
    found = numpy.zeros((ROWS, COLUMNS), numpy.float32)
    place = {"global_shape": found.shape, "offset": (0, 0)}
    with pytest.raises(libckpt.InvalidArgument, match='"a" and "b" share memory here'):
        session.restore(arrays=[Array("a", found, **place), Array("b", found, **place)])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"flat": -1}, "flat has -1: whole numbers"),
        ({"copy": 1.5, "flat": 0}, "copy has 1.5: whole numbers"),
        ({"global_shape": (12.9,), "flat": 0}, "global_shape has 12.9: whole numbers"),
        ({"offset": (-1,)}, "offset has -1: whole numbers"),
        ({"name": 7, "flat": 0}, "array 7: its name is no text"),
        ({"buffer": numpy.zeros(3, "U4"), "flat": 0}, "which can only be saved as an item"),
        ({"buffer": numpy.zeros(3, numpy.complex128), "flat": 0}, "only be saved as an item"),
        ({"buffer": numpy.zeros(3, "i4,f4"), "flat": 0}, "and no tensor"),
    ],
)  # fmt: skip
def test_a_part_that_makes_no_sense_is_refused_where_it_is_made(change, problem):
    given = {"name": "a", "buffer": numpy.zeros(3), "global_shape": (6,)} | change
    with pytest.raises(libckpt.InvalidArgument, match=problem):
        Array(given.pop("name"), given.pop("buffer"), **given)


def test_a_constant_part_is_held_until_it_is_copied_and_no_longer(job):
    session = job()
    buffer = numpy.random.default_rng(1).standard_normal((1 << 22, 2))  # 64 MiB.
    expected, held = buffer.copy(), weakref.ref(buffer)
    shape = buffer.shape
    array = Array("w", buffer, global_shape=shape, offset=(0, 0), is_constant=True)
    assert session.save(1, {}, arrays=[array])
    del buffer, array
    session.wait(1, "committed")
    session.finish_capture()
    assert held() is None
    found = numpy.zeros(shape)
    session.restore(arrays=[Array("w", found, global_shape=shape, offset=(0, 0))])
    assert numpy.array_equal(found, expected)
    # One that is not constant any more is copied before the save returns.
    assert session.save(2, {}, arrays=[Array("w", found, global_shape=shape, offset=(0, 0))])
    found[:] = 0
    session.wait(2, "committed")
    again = numpy.zeros(shape)
    session.restore(arrays=[Array("w", again, global_shape=shape, offset=(0, 0))])
    assert numpy.array_equal(again, expected)


def test_a_part_that_may_go_goes_without_a_word(job, caplog):
    session = job()

    def part(name, may_go):
        whole = numpy.ones((2, 2))
        return Array(name, whole, global_shape=(2, 2), offset=(0, 0), may_go=may_go)

    assert session.save(1, {}, arrays=[part("a", True), part("b", False)], wait=60)
    assert session.save(2, {}, arrays=[part("b", False)], wait=60)
    assert "not given" not in caplog.text
    assert session.save(3, {}, arrays=[], wait=60)
    assert '1 array(s) of the call before are not given, "b" first' in caplog.text
