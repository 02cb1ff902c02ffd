"""Goal: a job of Megatron whose memory is lost goes on from what is on storage in another number of
ranks, and back: from libckpt's own `dir`, and from Megatron's classic folders.

Method: as test_megatron.py. Before each launch the daemon and its memory are gone. The state that
ranks begin with is compared bit for bit with what those before them had, and losses with a whole
run.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from test_megatron import check_equal, job, losses  # noqa: E402, F401
from test_ranks import said  # noqa: E402

pytestmark = pytest.mark.slow


def go_on(job, launches, **options):
    """(losses of all launches, their logs), each of (ranks, tensor parallel ones, its last step),
    which goes on from where the one before it ended."""
    found, logs, before = {}, [], None
    for ranks, tensor, steps in launches:
        concat = ranks == 1 and before is not None
        log = job.run(ranks, "job", steps, tensor=tensor, concat=concat, **options)
        job._cluster.stop("A")
        if before is not None:
            step, before_tensor = before
            assert said(log, 0, "began at") == [[str(step)]]
            check_equal(job.dumped("job", f"began-{step}", tensor),
                        job.dumped("job", f"made-{step}", before_tensor))  # fmt: skip
        found |= losses(log)
        logs.append(log)
        before = steps, tensor
    return found, logs


@pytest.mark.parametrize(
    "launches",
    [[(2, 1, 2), (1, 1, 4), (2, 1, 6)], [(2, 2, 2), (1, 1, 4), (4, 2, 6)]],
    ids=["data-parallel", "tensor-parallel"],
)
def test_libckpts_own_storage_is_for_any_number_of_ranks(job, tmp_path, launches):
    whole = losses(job.run(1, "whole", 6))
    directory = tmp_path / "dir"
    found, logs = go_on(job, launches, storage=2, kept=2, options={"dir": str(directory)})
    assert found == pytest.approx(whole, rel=1e-5)
    for log, step in zip(logs[1:], (2, 4), strict=True):
        assert f"libckpt: resumes step {step} from {directory}" in log


@pytest.mark.parametrize("options", [{}, {"distributed": False}], ids=["distributed", "plain"])
def test_classic_folders_are_for_another_number_of_data_parallel_ranks_and_back(
    job, tmp_path, options
):
    whole = losses(job.run(2, "whole", 6, **options))
    directory = tmp_path / "checkpoints"
    options = {**options, "directory": str(directory)}
    launches = [(2, 1, 2), (1, 1, 4), (2, 1, 6)]
    found, logs = go_on(job, launches, storage=2, kept=2, **options)
    assert found == pytest.approx(whole, rel=1e-5)
    for log, step in zip(logs[1:], (2, 4), strict=True):
        assert f"iter_{step:07d}; memory has no step" in log
