"""Goal: ranks that hold copies of a tensor capture a share of it each, and any number of ranks has
all of it again: from memory, from peers, from storage, and through the command line.

Method: sessions of several ranks in one process save tensors whose elements carry their numbers.
They are abandoned as by a death, and what others restore is compared element by element.
"""

import json
import subprocess

import numpy
import pytest
from test_arrays import at_once, lose_memory

import libckpt
from libckpt import Array
from libckpt.core import _replicas

RANKS = 4
SHAPES = {"matrix": (1031, 513), "range": (700_001,), "norm": (33,), "bias": (9001,)}
UNLIKE = {"half": (150_000,), "extra": (125_000,)}  # Not all of a mebibyte, and more than that.


def whole(name, step):
    shape = (SHAPES | UNLIKE)[name]
    return (numpy.arange(numpy.prod(shape), dtype=numpy.float32) + 1000 * step).reshape(shape)


def of_rank(rank, ranks, make, names=SHAPES):
    """The arrays of each of them: all of every tensor."""
    arrays = []
    for name in names:
        buffer = make(name)
        place = {"flat": 0} if name == "range" else {"offset": (0,) * buffer.ndim}
        arrays.append(
            Array(name, buffer, global_shape=buffer.shape, copy=rank, copies=ranks, **place)
        )
    return arrays


def nothing(name):
    return numpy.full_like(whole(name, 0), -1)


def check(arrays, step):
    for array in arrays:
        assert numpy.array_equal(array.buffer, whole(array.name, step)), array.name


@pytest.fixture
def ranks(job, tmp_path):
    def open_sessions(count, directory=None, **options):
        if directory:
            options |= {"dir": str(tmp_path / directory), "save_storage_interval": 1}
        return [job(rank=rank, world_size=count, **options) for rank in range(count)]

    return open_sessions


def save(sessions, step, level):
    count = len(sessions)

    def save_one(rank, session):
        assert session.save(
            step, {"n": rank}, arrays=of_rank(rank, count, lambda name: whole(name, step))
        )

    at_once(sessions, save_one)
    at_once(sessions, lambda _, session: session.wait(step, level))


def restore(sessions):
    """(answers, arrays) of all ranks."""
    count = len(sessions)
    found = [of_rank(rank, count, nothing) for rank in range(count)]
    answers = at_once(sessions, lambda rank, one: one.restore({"n": -1}, arrays=found[rank]))
    return answers, found


def die(sessions):
    for session in sessions:
        session.abandon()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_any_number_of_ranks_has_all_of_it_from_memory(ranks, count):
    sessions = ranks(RANKS)
    save(sessions, 1, "committed")
    save(sessions, 2, "committed")
    die(sessions)
    sessions = ranks(count)
    answers, found = restore(sessions)
    for rank, (answer, arrays) in enumerate(zip(answers, found, strict=True)):
        assert (answer.step, answer.source, answer.world_size) == (2, "own_memory", RANKS)
        assert answer.items == {"n": rank % RANKS}
        check(arrays, 2)
    save(sessions, 3, "committed")  # They go on, and so do others after them.
    die(sessions)
    answers, found = restore(ranks(2))
    assert [answer.world_size for answer in answers] == [count] * 2
    for arrays in found:
        check(arrays, 3)


def test_a_share_is_captured_and_no_more(ranks, tmp_path, programs):
    sessions = ranks(RANKS, "dir")
    save(sessions, 1, "durable")
    directory = tmp_path / "dir" / "step-000000001"
    sizes = [
        (directory / f"rank-{rank:05}.safetensors").stat().st_size for rank in range(RANKS)
    ]
    divided = sum(whole(name, 1).nbytes for name in ("matrix", "range"))
    assert max(sizes) < 1.05 * divided / RANKS + 64 * 1024, sizes
    told = subprocess.run([programs / "ckpt", "verify", directory], check=True, timeout=60,
                          capture_output=True, text=True)  # fmt: skip
    assert told.stdout.startswith("good"), told.stdout


@pytest.mark.parametrize("count", [1, RANKS])
def test_storage_has_all_of_it_too(ranks, programs, count):
    sessions = ranks(RANKS, "dir")
    save(sessions, 1, "durable")
    lose_memory(sessions, programs)
    sessions = ranks(count, "dir")
    answers, found = restore(sessions)
    for answer, arrays in zip(answers, found, strict=True):
        assert (answer.step, answer.source, answer.world_size) == (1, "storage", RANKS)
        check(arrays, 1)
    save(sessions, 2, "durable")


def test_the_command_line_puts_it_together(ranks, tmp_path, programs):
    safetensors = pytest.importorskip("safetensors.numpy")
    sessions = ranks(RANKS, "dir")
    save(sessions, 1, "durable")
    save(sessions, 2, "durable")
    checkpoint, exported = tmp_path / "dir" / "step-000000001", tmp_path / "model.safetensors"

    def ckpt(*arguments, code=0):
        told = subprocess.run([programs / "ckpt", *map(str, arguments)], timeout=60, check=False,
                              capture_output=True, text=True)  # fmt: skip
        assert told.returncode == code, told.stderr
        return told.stdout

    ckpt("export", checkpoint, exported)
    found = safetensors.load_file(exported)
    for name in SHAPES:
        assert numpy.array_equal(found[name], whole(name, 1)), name
    listed = json.loads(ckpt("inspect", checkpoint, "--json"))
    assert set(SHAPES) <= {tensor["name"] for tensor in listed["tensors"]}
    ckpt("diff", checkpoint, checkpoint)
    differing = ckpt("diff", checkpoint, tmp_path / "dir" / "step-000000002", code=1)
    assert all(name in differing for name in SHAPES)


def test_ranks_that_differ_in_other_tensors_leave_nothing_out(ranks):
    """A tensor too small for one rank to divide is divided by the other: part is captured twice."""
    names = [["half"], ["half", "extra"]]

    def arrays(rank, make):
        return of_rank(rank, 2, make, names[rank])

    sessions = ranks(2)
    at_once(sessions, lambda rank, one: one.save(
        1, {}, arrays=arrays(rank, lambda name: whole(name, 1))))  # fmt: skip
    at_once(sessions, lambda _, one: one.wait(1, "committed"))
    die(sessions)
    sessions = ranks(2)
    found = [arrays(rank, nothing) for rank in range(2)]
    at_once(sessions, lambda rank, one: one.restore(arrays=found[rank]))
    check(found[0] + found[1], 1)


def test_groups_of_copies_may_hold_the_same(ranks):
    """As tensor parallel ranks hold the same norms, each with its data parallel copies."""
    sessions = ranks(4)
    at_once(sessions, lambda rank, one: one.save(
        1, {}, arrays=of_rank(rank // 2, 2, lambda name: whole(name, 1))))  # fmt: skip
    at_once(sessions, lambda _, one: one.wait(1, "committed"))
    die(sessions)
    for count in (4, 3):
        sessions = ranks(count)
        found = [of_rank(rank // 2, 2, nothing) for rank in range(count)]
        at_once(sessions, lambda rank, one, found=found: one.restore(arrays=found[rank]))
        for arrays in found:
            check(arrays, 1)
        die(sessions)


def test_a_copy_that_nobody_captured_is_named(ranks):
    """The second of two ranks is missing from what says it was divided by two."""
    (session,) = ranks(1)
    session.save(1, {}, arrays=of_rank(0, 2, lambda name: whole(name, 1)))
    session.wait(1, "committed")
    session.abandon()
    (session,) = ranks(1)
    with pytest.raises(libckpt.InvalidArgument, match="no rank has saved .*matrix"):
        session.restore(arrays=of_rank(0, 2, nothing))


def test_a_number_that_its_count_lacks_is_refused(ranks):
    (session,) = ranks(1)
    array = Array("a", numpy.zeros(3), global_shape=(3,), flat=0, copy=2, copies=2)
    with pytest.raises(libckpt.InvalidArgument, match="copy 2 of 2"):
        session.save(1, {}, arrays=[array])


def test_a_difference_between_small_copies_is_reported_when_they_are_stored(
    ranks, tmp_path, programs
):
    sessions = ranks(3, "run")

    def save_one(rank, session):
        arrays = of_rank(rank, 3, lambda name: whole(name, 7), names=["norm", "matrix"])
        arrays[0].buffer[5] += rank == 2
        assert session.save(7, {"n": rank}, arrays=arrays)

    at_once(sessions, save_one)
    at_once(sessions, lambda _, session: session.wait(7, "durable"))
    differ = sessions[0].status()["daemon"]["copies_differ"]
    assert differ["tensor"] == "norm"
    assert differ["ranks"] == [[0, 1], [2]]
    assert (differ["saves"], differ["step"], differ["tensors"]) == (1, 7, 1)
    told = subprocess.run([programs / "ckpt", "status"], capture_output=True, text=True, timeout=60)
    assert '  copies differ: step 7, 1 tensor, "norm" first' in told.stdout
    assert not [path.name for path in (tmp_path / "run").rglob("*.copies")]


def test_equal_copies_are_no_difference(ranks):
    sessions = ranks(3, "run")
    save(sessions, 7, "durable")
    assert sessions[0].status()["daemon"]["copies_differ"] is None


def test_common_items_that_differ_are_reported_by_name(ranks):
    sessions = ranks(2, "run")

    def save_one(rank, session, step, rate):
        scheduler = [("rate", rate), ("table", numpy.arange(3.0))]
        items = {"n": rank, "scheduler": dict(scheduler[::-1] if rank else scheduler)}
        assert session.save(step, items, common=["scheduler"])
        session.wait(step, "durable")

    at_once(sessions, lambda rank, session: save_one(rank, session, 1, 0.5))
    assert sessions[0].status()["daemon"]["copies_differ"] is None
    at_once(sessions, lambda rank, session: save_one(rank, session, 2, 0.5 + rank))
    differ = sessions[0].status()["daemon"]["copies_differ"]
    assert (differ["tensor"], differ["step"]) == ("libckpt.common/scheduler", 2)
    assert differ["ranks"] == [[0], [1]]


def test_a_new_rank_has_the_common_items_and_is_told_whose_the_others_are(ranks):
    sessions = ranks(2)
    saved = {"args": {"width": 3}, "of": None}

    def save_one(rank, session):
        assert session.save(4, saved | {"of": rank}, common="args")
        session.wait(4, "committed")

    at_once(sessions, save_one)
    die(sessions)
    answers = at_once(ranks(3), lambda rank, session: session.restore())
    assert [answer.items["args"] for answer in answers] == [{"width": 3}] * 3
    assert [answer.items_of for answer in answers] == [0, 1, 0]
    assert [answer.items["of"] for answer in answers] == [0, 1, 0]


def test_an_item_that_cannot_be_compared_is_logged_by_name_and_saved_all_the_same(job, caplog):
    session = job(raise_on_error=True)
    table = {"table": numpy.zeros(200_000)}
    assert session.save(1, table, common=["other", "table"]).outcome == "started"
    assert '"other" is none of the items' in caplog.text
    assert '"table" has tensors of more than 1048576 bytes' in caplog.text


def test_slots_are_as_large_as_the_shares_before_the_first_save_too(ranks):
    sessions = ranks(RANKS)
    names = ["matrix", "range"]
    found = [of_rank(rank, RANKS, nothing, names) for rank in range(RANKS)]
    at_once(sessions, lambda rank, one: one.prepare({"n": rank}, arrays=found[rank]))
    slots = [slot for slot in sessions[0].status()["daemon"]["slots"] if slot["own"]]
    whole_bytes = sum(array.buffer.nbytes for array in found[0])
    assert len(slots) == 2 * RANKS
    # Beside the shares a Slot has the structure of the items.
    room = libckpt.core._structure.BLOB_CAPACITY + (1 << 20)
    assert all(slot["bytes"] <= whole_bytes / RANKS + room for slot in slots)
    before = {slot["bytes"] for slot in slots}
    at_once(sessions, lambda rank, one: one.save(1, {"n": rank}, arrays=found[rank]))
    slots = sessions[0].status()["daemon"]["slots"]
    assert {slot["bytes"] for slot in slots if slot["own"]} == before


def test_the_state_of_parts_is_expected_to_be_divided_as_they_are():
    sizes = {"weight": 1 << 20, "norm": 4096, "own": 1 << 20}
    place = ((1,), (0,), None, None, 0, 4)
    assert _replicas.captured_share(sizes, {}) == 1
    expected = (1 << 18) + 4096 + (1 << 20)
    shared = _replicas.captured_share(sizes, {"weight": place, "norm": place})
    assert shared == expected / sum(sizes.values())


def save_matrix(sessions, step, changed_rank):
    """Divided among the ranks; one has another element than the others."""

    def save_one(rank, session):
        arrays = of_rank(rank, len(sessions), lambda name: whole(name, step), names=["matrix"])
        arrays[0].buffer[700, 100] += rank == changed_rank
        assert session.save(step, {"n": rank}, arrays=arrays)
        session.wait(step, "durable")

    at_once(sessions, save_one)


@pytest.mark.parametrize("changed_rank", range(3))
def test_a_difference_between_divided_copies_is_reported(ranks, capfd, changed_rank):
    """Also where the rank that differs captures another share than the one with that element."""
    sessions = ranks(3, "run")
    save_matrix(sessions, 1, None)
    assert sessions[0].status()["daemon"]["copies_differ"] is None
    save_matrix(sessions, 2, changed_rank)
    differ = sessions[0].status()["daemon"]["copies_differ"]
    assert (differ["tensor"], differ["step"], differ["saves"]) == ("matrix", 2, 1)
    others = [rank for rank in range(3) if rank != changed_rank]
    assert sorted(differ["ranks"]) == sorted([[changed_rank], others])
    save_matrix(sessions, 3, None)  # The notice came before the answers of this save.
    told = capfd.readouterr().err
    lines = [line for line in told.splitlines() if "are not the same" in line]
    assert len(lines) == 1
    assert 'step 2: "matrix" differs' in lines[0]


def test_divided_copies_are_not_compared_when_that_is_switched_off(ranks):
    sessions = ranks(3, "run", compare_copies=False)
    save_matrix(sessions, 1, 1)
    assert sessions[0].status()["daemon"]["copies_differ"] is None


def test_copies_without_a_count_are_compared_with_the_first(ranks):
    """A whole tensor, and a part, of which each rank captures its own."""
    sessions = ranks(2, "run")

    def save_one(rank, session):
        step = 1
        both = numpy.arange(8.0) + rank
        arrays = [Array("whole", both, global_shape=(8,), offset=(0,), copy=rank),
                  Array("part", numpy.arange(4.0) - rank, global_shape=(9,), flat=3, copy=rank),
                  Array("own", both.copy(), global_shape=(8,), offset=(0,))]  # fmt: skip
        assert session.save(step, {"n": rank}, arrays=arrays)
        session.wait(step, "durable")

    at_once(sessions, save_one)
    differ = sessions[0].status()["daemon"]["copies_differ"]
    assert (differ["tensors"], differ["tensor"]) == (2, "part")
