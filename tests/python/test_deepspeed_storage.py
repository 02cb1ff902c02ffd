"""Goal: an engine of DeepSpeed goes on from whatever is on storage: universal folders that stock
tools made, and libckpt's own `dir`, in any number of ranks and back.

Method: as test_deepspeed.py. Universal folders are made by DeepSpeed's own converter; memory is
lost before each start that is to take storage.
"""

import subprocess
import sys

import pytest

pytest.importorskip("deepspeed")

from test_deepspeed import check_began, jobs, lose_memory, losses, states  # noqa: E402, F401
from test_ranks import said  # noqa: E402

pytestmark = pytest.mark.slow
BF16 = {"dtype": "bf16"}


def convert(folder, step):
    """DeepSpeed's own tool, in a process without libckpt."""
    target = folder / f"global_step{step}_universal"
    arguments = ["--input_folder", folder / f"global_step{step}", "--output_folder", target,
                 "--inject_missing_state", "--num_extract_workers", "1"]  # fmt: skip
    program = (
        "import sys; sys.modules['libckpt'] = None; "
        "from deepspeed.checkpoint import ds_to_universal as tool; "
        "tool.main(tool.parse_arguments())"
    )
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (folder / "latest_universal").write_text(target.name)


@pytest.mark.parametrize("case", [{"stage": 1}, {"stage": 2, **BF16}, {"stage": 3}],
                         ids=["stage-1", "stage-2-bf16", "stage-3"])  # fmt: skip
def test_an_attached_engine_loads_stock_universal_folders_and_memory_is_newer_later(
    jobs, tmp_path, case
):
    """2 ranks save, and 1 restores; those are killed, and 2 ranks go on from memory."""
    folder = tmp_path / "folder"
    given = {**case, "folder": str(folder)}
    whole = jobs.run(2, **given, job="whole", stock=True, save_at=[4])
    convert(folder, 4)
    resumed = {**given, "universal": True, "seed": 2}
    stock = losses(jobs.run(1, **resumed, job="stock", stock=True))
    one = jobs.run_killed(1, 6, **resumed)
    assert said(one, 0, "began at") == [["4", states(whole)[4]]]
    assert "resumes step" not in one
    log = jobs.run(2, **resumed)
    assert check_began(log, 2, one) == 6
    assert "libckpt: resumes step 6 from own memory" in log
    # DeepSpeed takes no frozen weights from such a folder: the whole run's losses are no measure.
    assert losses(log)[:6] == stock[:6]
    assert losses(log) == pytest.approx(stock, abs=2e-2 if "dtype" in case else 1e-4)
    assert len(losses(log)) == 9  # The client state of the folder and of memory came along.


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_universal_folder_of_an_engine_in_bf16_is_loaded_with_and_without_libckpt(
    jobs, tmp_path, stage
):
    given = {"stage": stage, **BF16, "folder": str(tmp_path / "folder")}
    whole = jobs.run(2, **given, universal_at=4)
    for ranks, stock in ((1, True), (2, False)):
        log = jobs.run(ranks, **given, job="other", stock=stock, universal=True)
        assert said(log, 0, "began at") == [["4", states(whole)[4]]]
        assert losses(log) == pytest.approx(losses(whole), abs=2e-2)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_go_on_from_libckpts_own_storage_in_another_number_and_back(
    jobs, tmp_path, programs, stage
):
    """2 -> 1 -> 2, each without the memory of those before it."""
    directory = tmp_path / "dir"
    given = {"stage": stage, "dir": str(directory), "folder": "/nonexistent", "end": "close"}
    whole = jobs.run(2, stage=stage, job="whole", stock=True)
    before = jobs.run(2, **given, steps=4)
    for ranks, steps in ((1, 6), (2, 9)):
        lose_memory(programs)
        log = jobs.run(ranks, **given, steps=steps, seed=2)
        step = check_began(log, ranks, before)
        assert f"libckpt: resumes step {step} from {directory}" in log
        before = log
    assert losses(before) == pytest.approx(losses(whole), abs=1e-4)
    assert len(losses(before)) == 9
