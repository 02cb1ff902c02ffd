"""Goal: a script that forgets to restore replaces no step that is there.

Method: a job is trained and closed, then opened again and saved to without a restore.
"""

import logging
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


def trained(job, tmp_path, **options):
    """A job of three stored steps, and its directory."""
    directory = tmp_path / "checkpoints"
    session = job(dir=str(directory), max_ckpt_num=2, save_storage_interval=1, **options)
    for step in (10, 20, 30):
        session.save(step, {"w": torch.full((4,), float(step))})
        session.wait(step, "durable")
    session.close()
    return directory


def steps_in(directory):
    return sorted(int(path.name[5:]) for path in directory.glob("step-*"))


SAVES = """
import logging, sys, libckpt, torch
logging.getLogger("libckpt").propagate = False
options = {"log_file_path": sys.argv[2]} if sys.argv[2] else {}
session = libckpt.init("job", dir=sys.argv[1], raise_on_error=False, **options)
assert session.save(1, {"w": torch.zeros(4)}).outcome == "failed"
"""


@pytest.mark.parametrize("has_file", [False, True])
def test_without_handlers_of_python_the_terminal_has_the_error_once(job, tmp_path, has_file):
    """In a process of its own: where it logs is the whole process's."""
    directory, log = trained(job, tmp_path), str(tmp_path / "log") if has_file else ""
    done = subprocess.run(
        [sys.executable, "-c", SAVES, directory, log], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("no rank asked for it") == 1, done.stderr


def test_a_first_save_without_a_restore_replaces_nothing(job, tmp_path, caplog):
    directory = trained(job, tmp_path)
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        session = job(
            dir=str(directory), max_ckpt_num=2, save_storage_interval=1, raise_on_error=False
        )
        outcomes = [session.save(step, {"w": torch.zeros(4)}).outcome for step in (1, 2, 3)]
    assert outcomes == ["failed"] * 3
    assert session.counts()["failed"] == 3
    assert "the job has step 30, and no rank asked for it" in caplog.text
    assert "start_fresh()" in caplog.text
    assert steps_in(directory) == [20, 30]

    w = torch.zeros(4)
    assert session.restore_or({"w": w}) == 30
    assert w.tolist() == [30.0] * 4
    session.prepare({"w": w})  # The first save has waited for memory, and no later one does.
    assert session.save(31, {"w": w}).outcome == "started"
    session.close()
    assert steps_in(directory) == [30, 31]


def test_a_training_begins_without_a_step_when_its_program_says_so(job, tmp_path):
    directory = trained(job, tmp_path)
    session = job(dir=str(directory), max_ckpt_num=2, save_storage_interval=1)
    session.start_fresh()
    assert session.save(1, {"w": torch.zeros(4)}).outcome == "started"
    session.close()
    assert 1 in steps_in(directory)


def test_a_second_training_in_one_program_is_saved_from_its_first_step(job, tmp_path):
    session = job(dir=str(tmp_path / "checkpoints"), save_storage_interval=1)
    for step in (10, 20):
        session.save(step, {"w": torch.full((4,), float(step))})
        session.wait(step, "durable")
    session.start_fresh()
    for step in (1, 2):
        assert session.save(step, {"w": torch.full((4,), -float(step))}).outcome == "started"
        session.wait(step, "durable")
    w = torch.zeros(4)
    assert session.restore_or({"w": w}) == 2
    assert w.tolist() == [-2.0] * 4
