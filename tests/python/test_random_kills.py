"""Goal: behind each door, ranks that are killed at random instants end as if they had not been.

Method: real ranks of the trainers of the other tests. All of them are killed as soon as one of
them, a random one, has said that it made a random step: the others are anywhere in theirs, and
captures are under way. The state at the end of the last launch equals that of a run that nobody
kills, to the last bit. So do the losses of each step, however often it was made.
"""

import os
import random

import pytest

torch = pytest.importorskip("torch")

import test_deepspeed  # noqa: E402
import test_megatron  # noqa: E402
from test_ranks import Cluster, kill_all, results, said  # noqa: E402

jobs, job = test_deepspeed.jobs, test_megatron.job

KILLS = 4
STEPS = 24
SEED = int(os.environ.get("CKPT_PYTHON_SEED", "1"))

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path, programs, trainer):
    found = Cluster(tmp_path, programs, trainer)
    yield found
    left = found.close()
    assert "processes" not in left, left


def killed(start, steps=STEPS, ranks=2):
    """The logs of launches by start(), each killed at a random instant, after the one before."""
    generator, logs, begun = random.Random(SEED), [], []
    for _ in range(KILLS):
        process = start()
        rank = generator.randrange(ranks)
        process.wait_until(lambda log=process.log: said(log.read_text(), 0, "began at"))
        begun.append(int(said(process.log.read_text(), 0, "began at")[0][0]))
        made = f"r{rank} made {begun[-1] + generator.randint(2, 5)}"
        process.wait_until(lambda log=process.log, made=made: any(
            line == made or line.startswith(f"{made} ") for line in log.read_text().splitlines()
        ))  # fmt: skip
        kill_all(process.log.read_text(), ranks, process)
        logs.append(process.log.read_text())
        if begun[-1] + 12 > steps:  # The next one might come to its end before it is killed.
            break
    assert len(logs) > 1
    assert begun == sorted(begun)
    assert begun[-1] > 0
    return logs


def goes_on(log):
    return int(said(log, 0, "began at")[0][0]) > 0


@pytest.mark.parametrize(
    ("program", "environment"),
    [("ranks.py", {}), ("sharded.py", {}), ("sharded.py", {"COPIES": "2"}), ("dcp_ranks.py", {})],
    ids=["ddp", "fsdp2", "hsdp", "dcp"],
)
def test_ranks_of_torch_end_as_if_they_had_not_been_killed(cluster, program, environment):
    cluster.program = program
    nodes = "AABB" if environment else "AB"
    whole = cluster.start(nodes, "whole", STEPS, **environment).finish()
    killed(lambda: cluster.start(nodes, "job", STEPS, **environment), ranks=len(nodes))
    last = cluster.start(nodes, "job", STEPS, **environment).finish()
    assert goes_on(last)
    assert ends(last, len(nodes)) == ends(whole, len(nodes))


def ends(log, ranks):
    """Losses of all steps, and weights."""
    found = results(log, ranks)
    assert all(weights for _, weights in found), log
    return *found, said(log, 0, "loss")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_engines_of_deepspeed_end_as_if_they_had_not_been_killed(jobs, stage):
    case = {"stage": stage, "steps": STEPS, "folder": "/nonexistent"}
    whole = jobs.run(2, **case, job="whole", stock=True)
    expected = test_deepspeed.losses(whole)
    logs = killed(lambda: jobs.start(2, **case))
    last = jobs.run(2, **case)
    assert goes_on(last)
    assert test_deepspeed.losses(last) == expected
    for log in [*logs, last]:
        made = test_deepspeed.states(log)
        assert made == {step: test_deepspeed.states(whole)[step] for step in made}
        rates = test_deepspeed.rates(log)
        assert rates == {step: test_deepspeed.rates(whole)[step] for step in rates}


@pytest.mark.parametrize("options", [{}, {"tensor": 2}], ids=["data", "tensor"])
def test_ranks_of_megatron_end_as_if_they_had_not_been_killed(job, options):
    steps = 20
    whole = job.run(2, "whole", steps, **options)
    logs = killed(lambda: job.start(2, "job", steps, **options), steps)
    last = job.run(2, "job", steps, **options)
    assert goes_on(last)
    for log in [*logs, last]:
        found, expected = test_megatron.losses(log), test_megatron.losses(whole)
        assert found == {step: expected[step] for step in found}
    assert max(test_megatron.losses(last)) == steps
    assert said(last, 0, "rates") == said(whole, 0, "rates")
