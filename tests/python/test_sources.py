"""Goal: a restore from memory alone or from storage alone gives what that place has, or says what
the other one has; arrays that are only named come as new ones.

Method: jobs of one and of two ranks with steps in both places, and one whose memory is gone.
Values are compared, and the source that the restore names.
"""

import subprocess
import sys

import numpy
import pytest
from test_arrays import at_once

import libckpt

VALUES = numpy.arange(24, dtype=numpy.float32).reshape(8, 3)


def save_two_and_store_the_first(session):
    state = {"x": numpy.zeros(5)}
    for step, level in ((2, "durable"), (3, "committed")):
        state["x"][:] = step
        session.save(step, state, wait=30)
        session.wait(step, level)
    return state


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def test_each_place_gives_its_own_newest_step(job, run):
    session = job(dir=run, save_storage_interval=2)
    with pytest.raises(libckpt.NotFound):  # The job has nothing yet: it begins.
        session.restore(source="storage")
    state = save_two_and_store_the_first(session)
    restored = session.restore(state, source="memory")
    assert (restored.step, restored.source) == (3, "own_memory")
    assert (state["x"] == 3).all()
    restored = session.restore(state, source="storage")
    assert (restored.step, restored.source, restored.newest_seen) == (2, "storage", 3)
    assert (state["x"] == 2).all()
    assert "storage alone was asked for" in restored.reason
    with pytest.raises(libckpt.NotFound):  # It was abandoned.
        session.restore(state, step=3)
    assert session.restore_or(state, source="memory") == 2
    session.save(3, state, wait=30)
    session.wait(3, "committed")
    assert session.restore_or(state) == 3


def test_memory_that_is_gone_is_no_beginning(job, run):
    options = {"dir": run, "save_storage_interval": 2, "embedded": True}
    first = job(**options)
    save_two_and_store_the_first(first)
    first.abandon()  # Its memory goes with it.
    session, state = job(**options), {"x": numpy.zeros(5)}
    with pytest.raises(libckpt.Unavailable, match="from memory alone.* step 2 can be restored"):
        session.restore_or(state, source="memory")
    with pytest.raises(libckpt.InvalidArgument, match="refused, since the restore before it"):
        session.save(1, state)
    assert session.restore_or(state, source="storage") == 2


def test_all_ranks_choose_the_same_source(job, run):
    sessions = [job(dir=run, save_storage_interval=2, rank=rank, world_size=2) for rank in (0, 1)]
    at_once(sessions, lambda _, session: save_two_and_store_the_first(session))

    def restore(rank, session):
        try:
            return session.restore(source=["memory", "storage"][rank])
        except libckpt.CheckpointError as error:
            return error

    for error in at_once(sessions, restore):
        assert isinstance(error, libckpt.InvalidArgument)
        assert "all ranks choose the same source" in str(error)
    restored = at_once(sessions, lambda _, session: session.restore(source="storage"))
    assert [each.step for each in restored] == [2, 2]


@pytest.mark.parametrize(
    ("wish", "words"),
    [({"source": "disk"}, "memory"), ({"source": "memory", "path": "/tmp"}, "the path is one")],
)
def test_a_choice_that_means_nothing_is_refused(job, run, wish, words):
    with pytest.raises(libckpt.InvalidArgument, match=words):
        job(dir=run).restore(**wish)


def test_a_job_without_a_directory_has_no_storage(job):
    with pytest.raises(libckpt.InvalidArgument, match="no directory"):
        job().restore(source="storage")


def save_divided(job, run):
    """Two ranks, with rows of "w" each; the second one alone has "last", and all of it."""
    sessions = [job(dir=run, save_storage_interval=1, rank=rank, world_size=2) for rank in (0, 1)]

    def save(rank, session):
        rows = VALUES[4 * rank : 4 * rank + 4].copy()
        arrays = [libckpt.Array("w", rows, global_shape=(8, 3), offset=(4 * rank, 0))]
        if rank == 1:
            whole = numpy.arange(3, dtype=numpy.int64)
            arrays.append(libckpt.Array("last", whole, global_shape=(3,), offset=(0,)))
        session.save(1, {"t": numpy.ones(5)}, arrays=arrays).durable.result(60)

    at_once(sessions, save)
    return sessions


def plain(tensor):
    return numpy.asarray(tensor)


def test_arrays_that_are_named_come_as_new_ones(job, run):
    save_divided(job, run)
    loaded = libckpt.load_checkpoint(run, arrays=["last", "w"])
    assert sorted(loaded.arrays) == ["last", "w"]
    assert (plain(loaded.arrays["w"]) == VALUES).all()
    assert (plain(loaded.arrays["last"]) == [0, 1, 2]).all()
    assert list(loaded.items) == ["t"]
    with pytest.raises(libckpt.InvalidArgument, match='no array "v".*last, w are there'):
        libckpt.load_checkpoint(run, arrays=["w", "v"])


def test_several_ranks_name_arrays_of_a_path_only(job, run):
    session = save_divided(job, run)[0]
    with pytest.raises(libckpt.InvalidArgument, match='array "w".*from a path'):
        session.restore(arrays=["w"])


def test_one_rank_gets_new_arrays_from_memory(job, run):
    session = job(dir=run)
    whole = libckpt.Array("w", VALUES.copy(), global_shape=(8, 3), offset=(0, 0))
    session.save(1, {}, arrays=[whole], wait=30)
    session.wait(1, "committed")
    restored = session.restore(arrays=["w"], source="memory")
    assert restored.source == "own_memory"
    assert (plain(restored.arrays["w"]) == VALUES).all()


def test_a_part_is_made_of_a_shape(job, run):
    save_divided(job, run)
    part = libckpt.Array("w", libckpt.TensorShape((10,), "F32"), global_shape=(8, 3), flat=7)
    libckpt.load_checkpoint(run, arrays=[part])
    assert (plain(part.buffer) == VALUES.reshape(-1)[7:17]).all()
    with pytest.raises(libckpt.Unsupported, match="F99"):
        libckpt.Array("w", libckpt.TensorShape((10,), "F99"), global_shape=(8, 3), flat=7)


def test_shapes_name_arrays_that_one_rank_has_whole(job, run):
    session = job(dir=run, save_storage_interval=1)
    whole = libckpt.Array("w", VALUES.copy(), global_shape=(8, 3), offset=(0, 0))
    session.save(1, {"t": numpy.ones(5)}, arrays=[whole]).durable.result(60)
    found = libckpt.load_checkpoint(run, shapes_only=True)
    assert found.arrays == {"w": libckpt.TensorShape((8, 3), "F32")}


def test_new_arrays_have_the_names_of_today(job, run):
    save_divided(job, run)
    loaded = libckpt.load_checkpoint(run, arrays=["weights"], renamed={"w": "weights"})
    assert (plain(loaded.arrays["weights"]) == VALUES).all()


def test_a_save_takes_no_names(job):
    with pytest.raises(libckpt.InvalidArgument, match="a restore alone takes a name"):
        job().save(1, {}, arrays=["w"])


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_new_arrays_are_of_the_framework_that_the_program_has_imported(job, run, framework):
    pytest.importorskip(framework)
    save_divided(job, run)
    program = f"""
import sys, {framework}, libckpt
array = libckpt.load_checkpoint(sys.argv[1], arrays=["w"]).arrays["w"]
print(type(array).__module__, array.sum().item(), "torch" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program, run], check=True, timeout=120,
                          capture_output=True, text=True).stdout  # fmt: skip
    assert said.split() == [framework, "276.0", str(framework == "torch")]


def test_new_arrays_of_types_that_numpy_lacks(job, run):
    torch = pytest.importorskip("torch")
    session = job(dir=run, save_storage_interval=1)
    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    whole = libckpt.Array("w", values, global_shape=(2, 3), offset=(0, 0))
    session.save(1, {}, arrays=[whole]).durable.result(60)
    assert torch.equal(libckpt.load_checkpoint(run, arrays=["w"]).arrays["w"], values)
