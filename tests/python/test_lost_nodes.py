"""Goal: where a node is lost with its memory, a job of any framework goes on from the copies that
its peer holds, and ends as if nothing had been.

Method: as test_ranks.py: ranks over gloo, each on a node of its own. One node is killed with its
daemon; the job comes back with a new node in its place, or with the other ranks alone. Its losses
are compared step by step with those of a run that nobody disturbs.
"""

import json
import os

import pytest

torch = pytest.importorskip("torch")

import lost_nodes  # noqa: E402
import test_megatron  # noqa: E402
from test_deepspeed import BATCH, losses, states  # noqa: E402
from test_ranks import cluster, process_of, said  # noqa: E402, F401
from test_sharded_trainers import fsdp  # noqa: E402

pytestmark = pytest.mark.slow
STEPS, LOST_AT = 8, 5


def lose_second_node(cluster, job):
    """The log of two ranks, of which the second one's node is lost; the first one is killed."""
    for rank in (0, 1):
        job.wait_until_said(f"r{rank} made {LOST_AT}")
    log = job.log.read_text()
    cluster.lose("B", process_of(log, 1))
    os.kill(process_of(log, 0), 9)  # As a launcher ends it.
    job.wait()
    return job.log.read_text()


def began(log, ranks):
    """The step that all ranks began at: the last one, or the one before it, which a busy machine
    may not have copied in time."""
    steps = {int(said(log, rank, "began at")[0][0]) for rank in range(ranks)}
    assert len(steps) == 1
    assert steps <= {LOST_AT, LOST_AT - 1}, log[-4000:]
    return steps.pop()


@pytest.mark.parametrize(
    ("case", "nodes"),
    [({"stage": 2}, "AC"), ({"stage": 3}, "AC"), ({"stage": 3}, "A"),
     ({"stage": 2, "dtype": "bf16"}, "CA")],
    ids=["stage-2", "stage-3", "stage-3-alone", "stage-2-bf16-others-first"],
)  # fmt: skip
def test_an_engine_of_deepspeed_takes_what_the_peer_has(cluster, case, nodes):
    cluster.program = "zero_nodes.py"

    def start(nodes, job="job", **more):
        given = {"steps": STEPS, "batch": BATCH, "micro": BATCH // 4, "waits": 60,
                 "attach": {"replicas": 2}, **case, **more}  # fmt: skip
        return cluster.start(nodes, job, json.dumps(given))

    whole = losses(start("AB", "whole", stock=True).finish())
    before = lose_second_node(cluster, start("AB", hold_at=LOST_AT))
    log = start(nodes, folder="/nonexistent", seed=2).finish()
    step = began(log, len(nodes))
    for rank in range(len(nodes)):
        assert said(log, rank, "began at") == [[str(step), states(before)[step]]]
    assert " from node A" in log or len(nodes) == 1, log[-4000:]
    assert len(losses(log)) == STEPS
    if len(nodes) == 2:
        assert losses(log) == whole
    else:  # Sums in another order differ in the last digits.
        assert losses(log) == pytest.approx(whole, abs=1e-4)


@pytest.mark.parametrize("nodes", ["AC", "A"])
def test_a_distributed_optimizer_of_megatron_takes_what_the_peer_has(cluster, tmp_path, nodes):
    job = test_megatron.Job(cluster, tmp_path)
    whole = test_megatron.losses(cluster.start("AB", "whole", STEPS, "{}").finish())
    dump = tmp_path / "job"
    dump.mkdir()
    options = json.dumps({"dump": str(dump), "concat": len(nodes) == 1})
    lose_second_node(cluster, cluster.start("AB", "job", STEPS, options, HOLD_AT=str(LOST_AT)))
    log = cluster.start(nodes, "job", STEPS, options).finish()
    step = began(log, len(nodes))
    assert " from node A" in log or len(nodes) == 1, log[-4000:]
    found = job.dumped("job", f"began-{step}", 1)
    test_megatron.check_equal(found, job.dumped("job", f"made-{step}", 1))
    found, expected = test_megatron.losses(log), {s: whole[s] for s in range(step + 1, STEPS + 1)}
    assert found == (expected if len(nodes) == 2 else pytest.approx(expected, rel=1e-5))


DOORS = {
    "zero-1": ("deepspeed", lost_nodes.Zero, {"stage": 1}),
    "zero-1-bf16": ("deepspeed", lost_nodes.Zero, {"stage": 1, "dtype": "bf16"}),
    "megatron-tensor": ("megatron.core", lost_nodes.Megatron, {"tensor": None}),
    "accelerate": ("accelerate", lost_nodes.Accelerate, {}),
    "accelerate-fsdp2": ("accelerate", lost_nodes.Accelerate, {"sharded": True}),
    "lightning": ("lightning.pytorch", lost_nodes.Lightning, {}),
    "transformers": ("transformers", lost_nodes.Transformers, {}),
    "transformers-fsdp2": ("transformers", lost_nodes.Transformers, fsdp("SHARDED")),
    "torchtitan": ("torchtitan", lost_nodes.Titan, {}),
}


@pytest.mark.parametrize("nodes", ["AC", "CA", "A"])
@pytest.mark.parametrize("door", DOORS)
def test_a_job_takes_what_the_peer_of_the_lost_node_has(cluster, tmp_path, door, nodes):
    """With an empty node in its place, which may have any of the ranks, or with fewer ranks."""
    package, kind, options = DOORS[door]
    pytest.importorskip(package)
    job = kind(cluster, tmp_path, is_alike=len(nodes) == 1, **options)
    whole = job.whole("AB")
    job.lose("AB", "B")
    log = job.start(nodes).finish()
    lost_nodes.check_resumed(job, log, nodes, "A")
    job.check_losses(log, len(nodes), whole, 2)


SLOWLY = {"LIBCKPT_FLUSH_RATE": "1MiB"}
FOLDERS = {  # With the name of the folder that is saved when the node is lost.
    "zero-1": ("deepspeed", lost_nodes.Zero, f"global_step{LOST_AT}",
               {"stage": 1, "save_at": [LOST_AT]}),
    "megatron-tensor": ("megatron.core", lost_nodes.Megatron, f"iter_{LOST_AT:07d}",
                        {"tensor": None, "storage": LOST_AT}),
    "accelerate": ("accelerate", lost_nodes.Accelerate, "checkpoints/checkpoint_0",
                   {"every": LOST_AT, "width": 60000}),
    "lightning": ("lightning.pytorch", lost_nodes.Lightning, "files",
                  {"every": LOST_AT, "width": 60000}),
    "transformers": ("transformers", lost_nodes.Transformers, f"checkpoint-{LOST_AT}",
                     {"save_steps": LOST_AT, "width": 256}),
}  # fmt: skip


def files_in(folder):
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {str(path) for path in paths if ".libckpt" not in path.parts}


@pytest.mark.parametrize(("lost", "nodes"), [("B", "AC"), ("A", "CB"), ("B", "A")])
@pytest.mark.parametrize("door", FOLDERS)
def test_a_node_is_lost_while_a_folder_is_written(cluster, tmp_path, door, lost, nodes):
    """Memory has its step, too. The folder comes whole, from what the other node has, or not."""
    package, kind, folder, options = FOLDERS[door]
    pytest.importorskip(package)
    job = kind(cluster, tmp_path, is_alike=len(nodes) == 1, **options)
    whole = job.whole("AB")
    job.environment = SLOWLY
    job.lose("AB", lost)
    job.environment = {}
    log = job.start(nodes).finish()
    lost_nodes.check_resumed(job, log, nodes, nodes.strip("C"))
    job.check_losses(log, len(nodes), whole, 2)
    expected = files_in(tmp_path / "whole" / folder)
    assert expected
    assert files_in(tmp_path / "job" / folder) in (set(), expected)
