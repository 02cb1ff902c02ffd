"""Goal: a script that opens a session beside a running training, and only restores, learns at once
whose place it takes and how to read without that. The training learns of whom, and the status
shows it.

Method: the test trains, and a second process restores its job at the same daemon.
"""

import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

SCRIPT = """
import sys
import libckpt
session = libckpt.init("job", dir=sys.argv[1])
print("restored", session.restore().step)
session.abandon()
"""


def restored_beside(directory):
    """The output of a script that restores the job in its own process, and its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        said, logged = script.communicate(timeout=120)
    assert script.returncode == 0, logged
    return script.pid, said, logged.splitlines()


def test_a_script_that_restores_beside_a_training_is_warned(job, ckpt, tmp_path):
    directory = str(tmp_path / "run")
    training = job(dir=directory)
    items = {"weight": torch.ones(10)}
    training.restore_or(items, default=0)
    assert training.save(1, items, wait=60)
    training.wait(1, "committed")
    pid, said, logged = restored_beside(directory)
    assert said == "restored 1\n"
    warnings = [line for line in logged if " warning libckpt " in line]
    assert len(warnings) == 1, logged
    assert (
        f"this process, pid {pid}, takes the place of pid {os.getpid()}, which is alive and "
        "captured step 1 "
    ) in warnings[0]
    assert f'libckpt.load_checkpoint("{directory}")' in warnings[0]

    with pytest.raises(libckpt.Unavailable, match=f"was taken over: .* attached, pid {pid}: "):
        training.wait(2, "captured")
    assert training.save(2, items).outcome == "skipped_unavailable"
    assert f"attached, pid {pid}: " in training.counts()["last_error"]
    told = ckpt("status", status=1)
    assert re.search(rf"taken over: rank 0, by pid {pid} from pid {os.getpid()}, .* step 1,", told)
