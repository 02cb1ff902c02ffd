"""Goal: a job of megatron-core goes on from memory, with the same ranks or with others, and its
folders on storage are Megatron's.

Method: real ranks over gloo train megatron-core's GPT on CPUs, are killed and started again with
other data and tensor parallel sizes. Losses are compared step by step with those of a run that
nobody kills, and the whole tensors bit for bit with what the ranks had when they were killed; they
are put together by Megatron's own means, without libckpt.
"""

import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from test_ranks import Cluster, kill_all, said  # noqa: E402


class Job:
    """Ranks of one job on one node."""

    def __init__(self, cluster, scratch):
        cluster.program = "gpt.py"
        self._cluster, self._scratch = cluster, scratch

    def start(self, ranks, job, steps, hold=0, **options):
        options.setdefault("dump", str(self._scratch / job))
        pathlib.Path(options["dump"]).mkdir(exist_ok=True)
        return self._cluster.start("A" * ranks, job, steps, json.dumps(options),
                                   HOLD_AT=str(hold))  # fmt: skip

    def run(self, ranks, job, steps, **options):
        """The log of ranks that come to their end."""
        return self.start(ranks, job, steps, **options).finish()

    def killed(self, ranks, job, steps, **options):
        """The log of ranks that are killed behind that step."""
        trainer = self.start(ranks, job, steps, hold=steps, **options)
        for rank in range(ranks):
            trainer.wait_until_said(f"r{rank} made {steps}\n")
        log = trainer.log.read_text()
        kill_all(log, ranks, trainer)
        return log

    def dumped(self, job, name, tensor):
        """The whole tensors of tensor parallel ranks, by name and what they are."""
        parts = [torch.load(self._scratch / job / f"{name}.{rank}") for rank in range(tensor)]
        whole = {}
        for key, first in parts[0].items():
            for kind in first.keys() - {"dimension"}:
                tensors = [part[key][kind] for part in parts]
                whole[f"{key} {kind}"] = joined(key, first["dimension"], tensors)
        return whole


def joined(name, dimension, tensors):
    if dimension is None:
        assert all(torch.equal(tensors[0], other) for other in tensors[1:]), name
        return tensors[0]
    if "linear_fc1" in name:  # Both halves of a gated layer are divided.
        halves = [tensor.chunk(2, dim=0) for tensor in tensors]
        return torch.cat([half for number in (0, 1) for half in (each[number] for each in halves)])
    return torch.cat(tensors, dim=dimension)


@pytest.fixture
def job(tmp_path, programs, trainer):
    cluster = Cluster(tmp_path, programs, trainer)
    yield Job(cluster, tmp_path)
    left = cluster.close()
    assert "processes" not in left, left


def losses(log, rank=0):
    return {int(step): float(loss) for step, loss in said(log, rank, "loss")}


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    apart = [name for name in found if not torch.equal(found[name], expected[name])]
    assert not apart


def check_goes_on(job, log, step, tensor_before, tensor_now, name="job"):
    """It began at the step, with all that the ranks before it had."""
    assert said(log, 0, "began at") == [[str(step)]], log
    assert "resumes step" in log
    before = job.dumped(name, f"made-{step}", tensor_before)
    check_equal(job.dumped(name, f"began-{step}", tensor_now), before)


def test_the_same_ranks_go_on_bit_for_bit(job):
    whole = job.run(2, "whole", 6)
    job.killed(2, "job", 3)
    log = job.run(2, "job", 6)
    check_goes_on(job, log, 3, 1, 1)
    expected = losses(whole)
    assert losses(log) == {step: expected[step] for step in (4, 5, 6)}
    assert said(log, 0, "rates") == said(whole, 0, "rates")


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"distributed": False}])
def test_other_numbers_of_data_parallel_ranks_go_on_from_memory(job, options):
    """2 -> 1 -> 2."""
    whole = losses(job.run(2, "whole", 6, **options))
    found = losses(job.killed(2, "job", 2, **options))
    log = job.killed(1, "job", 4, concat=True, **options)
    check_goes_on(job, log, 2, 1, 1)
    found |= losses(log)
    log = job.run(2, "job", 6, **options)
    check_goes_on(job, log, 4, 1, 1)
    found |= losses(log)
    assert found == pytest.approx(whole, rel=1e-2 if "bf16" in options else 1e-5)


def test_other_numbers_of_tensor_parallel_ranks_go_on_from_memory(job):
    """2 of each -> 2 tensor parallel ones -> 1 -> 2 of each."""
    whole = losses(job.run(1, "whole", 5))
    found = {}
    launches = [(4, 2), (2, 2), (1, 1), (4, 2)]
    for step, (ranks, tensor) in enumerate(launches, start=2):
        log = job.killed(ranks, "job", step, tensor=tensor)
        if step > 2:
            check_goes_on(job, log, step - 1, launches[step - 3][1], tensor)
        found |= losses(log)
    assert found == pytest.approx(whole, rel=1e-5)
