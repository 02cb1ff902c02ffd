"""Goal: modules under FSDP2 and their optimizers are items like any others: each rank captures its
own part, and any number of ranks goes on with all of them.

Method: real ranks over gloo, as in test_ranks.py; no number of them divides the rows evenly. They
are killed, and what they begin with is compared as whole tensors.
"""

import pytest

torch = pytest.importorskip("torch")

from test_ranks import Cluster, began, kill_all, process_of, results, said, states  # noqa: E402

STEPS = 10


@pytest.fixture
def sharded(tmp_path, programs, trainer):
    found = Cluster(tmp_path, programs, trainer)
    found.program = "sharded.py"
    yield found
    left = found.close()
    assert "processes" not in left, left


def check_began(log, ranks, saved_by, before, sources):
    """All began with what was made at one step, which `before`, a log, tells."""
    step, digest = began(log, 0)
    assert states(before)[step] == digest
    for rank in range(ranks):
        assert began(log, rank) == (step, digest)
        source, world_size = said(log, rank, "source")[0]
        assert (source in sources, world_size) == (True, str(saved_by)), source
        assert said(log, rank, "items of")[0] == [str(rank % saved_by)]
    return step


def test_sharded_ranks_go_on_from_memory_in_any_number(sharded):
    memory = ("own_memory", "peer_memory")
    whole = sharded.start("AB", "whole", STEPS).finish()
    assert said(whole, 0, "state") == [["0"]]  # Nothing to restore leaves an optimizer as it was.
    expected = results(whole)
    assert all(losses and weights for losses, weights in expected)
    # Six parameters and Adam's two for each are copied beside training, and its numbers of steps.
    assert int(said(whole, 0, "beside training")[0][0]) >= 6 * 4

    job = sharded.start("AB", "job", STEPS, HOLD_AT="5")
    job.wait_until_said("r0 made 5 ")
    two = job.log.read_text()
    kill_all(two, 2, job)
    log = sharded.start("AB", "job", STEPS).finish()  # The same number: to the last bit.
    assert check_began(log, 2, 2, two, memory) >= 3
    assert results(log) == expected

    job = sharded.start("ABC", "job", 20, HOLD_AT="13")
    job.wait_until_said("r0 made 13 ")
    three = job.log.read_text()
    check_began(three, 3, 2, log, memory)
    kill_all(three, 3, job)
    log = sharded.start("CB", "job", 16).finish()
    assert check_began(log, 2, 3, three, memory) >= 11


def test_another_number_of_sharded_ranks_goes_on_from_storage(sharded, tmp_path):
    directory = tmp_path / "dir"
    job = sharded.start("AB", "job", 8, directory).finish()
    for name in "AB":
        sharded.stop(name)
    log = sharded.start("ABC", "job", 9, directory).finish()
    assert check_began(log, 3, 2, job, ("storage",)) == 8
    for name in "ABC":
        sharded.stop(name)
    alone = sharded.start("A", "job", 10, directory).finish()
    assert check_began(alone, 1, 3, log, ("storage",)) == 9


@pytest.mark.slow
def test_copies_of_the_shards_are_captured_once_among_them(sharded, tmp_path):
    """HSDP: two groups of two ranks. Each tensor is large enough to be divided."""
    many = {"WIDTH": "40001", "COPIES": "2"}
    directory = tmp_path / "dir"
    whole = sharded.start("ABCD", "whole", 6, **many).finish()
    assert said(whole, 0, "mesh") == [["2", "2"]]
    job = sharded.start("ABCD", "job", 6, directory, HOLD_AT="5", **many)
    job.wait_until_said("r0 made 5 ")
    four = job.log.read_text()
    sharded.lose("D", process_of(four, 3))  # Its shares come from the node that has copies of them.
    kill_all(four, 3, job)
    log = sharded.start("ABCE", "job", 6, directory, **many).finish()
    assert check_began(log, 4, 4, four, ("own_memory", "peer_memory")) >= 3
    assert results(log) == results(whole)
    sizes = [file.stat().st_size for file in directory.glob("step-000000006/*.safetensors")]
    model = 3 * 4 * (16 + 1 + 2 + 2) * 40001  # With its state, in bytes.
    assert model < sum(sizes) < 1.2 * model + (4 << 20), sizes
    assert max(sizes) < 1.2 * model / 4 + (1 << 20), sizes
    for name in "ABCE":
        sharded.stop(name)
    log = sharded.start("ABCE", "job", 7, directory, **many).finish()
    assert check_began(log, 4, 4, whole, ("storage",)) == 6
    saved_by = "ABCE"  # 4 -> 2, which hold the model once, then a copy of it each -> 4.
    for nodes, steps, copies in (("AB", 8, 1), ("AB", 9, 2), ("ABCE", 10, 2)):
        for name in saved_by:
            sharded.stop(name)
        before, more = log, {**many, "COPIES": str(copies)}
        log = sharded.start(nodes, "job", steps, directory, **more).finish()
        found = check_began(log, len(nodes), len(saved_by), before, ("storage",))
        assert found == steps - 1
        saved_by = nodes


@pytest.mark.slow
def test_copies_of_shards_become_plain_shards_and_copies_again(sharded):
    """HSDP of 2 x 2 ranks -> 3 ranks that hold the model once -> 2 x 2."""
    memory, before, saved_by, newest = ("own_memory", "peer_memory"), None, 0, 0
    for nodes, at, more in [("ABCD", 4, {"COPIES": "2"}), ("ABC", 7, {}),
                            ("ABCD", 10, {"COPIES": "2"})]:  # fmt: skip
        job = sharded.start(nodes, "job", 20, HOLD_AT=str(at), **more)
        job.wait_until_said(f"r0 made {at} ")
        log = job.log.read_text()
        assert len(said(log, 0, "mesh")[0]) == len(more) + 1
        if before is not None:
            assert check_began(log, len(nodes), saved_by, before, memory) > newest
        kill_all(log, len(nodes), job)
        before, saved_by, newest = job.log.read_text(), len(nodes), at - 3
