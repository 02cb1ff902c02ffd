"""Goal: a checkpoint that a user may not read is no damaged one: it is named, never passed over in
silence, and it stays.

Method: root without the right to read everything, by `setpriv`, and a file of mode 0.
"""

import os
import shutil
import subprocess
import sys

import pytest

SETPRIV = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
TRAINER = """
import sys
import libckpt
session = libckpt.init("job", dir=sys.argv[1], save_storage_interval=1, max_ckpt_num=1,
                       raise_on_error=True)
items = {"step": 0}
try:
    print("restored", session.restore(items, *map(int, sys.argv[2:])).step)
except libckpt.CheckpointError as error:
    print("refused", error)
    session.abandon()
    sys.exit(3)
for step in (21, 22, 23):
    session.save(step, {"step": step}, wait=60)
    session.wait(step, "durable", 60)
session.close()
"""


@pytest.fixture
def directory(job, tmp_path, ckpt):
    if os.geteuid() != 0 or subprocess.run([*SETPRIV, "true"], check=False).returncode != 0:
        pytest.skip("only root can give up rights")
    directory = tmp_path / "checkpoints"
    session = job(dir=str(directory), save_storage_interval=1)
    for step in (10, 20):
        session.save(step, {"step": step})
        session.wait(step, "durable")
    session.close()
    ckpt("stop")
    return directory


def run(*command, code):
    done = subprocess.run([*SETPRIV, *command], capture_output=True, text=True, timeout=300,
                          check=False)  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["rank-00000.safetensors", "manifest.json"])
def test_a_step_that_may_not_be_read_is_kept_and_refuses_what_is_older(
    directory, programs, ckpt, name
):
    newest = directory / "step-000000020"
    (newest / name).chmod(0)
    told = run(programs / "ckpt", "verify", directory, code=1)
    assert f"UNREADABLE {newest}" in told
    assert "DAMAGED" not in told
    told = run(programs / "ckpt", "verify", "--repair", directory, "--from", directory, code=1)
    assert f"left as it is {newest}: " in told
    assert "nothing is replaced, since" in told
    assert "may be good" in told
    told = run(sys.executable, "-c", TRAINER, directory, code=3)
    assert "step 20 on storage could not be read, and may be good" in told
    assert "restore step 10 by its number" in told
    told = run(sys.executable, "-c", TRAINER, directory, "10", code=0)
    assert "restored 10" in told
    assert {path.name for path in directory.glob("step-*")} == {newest.name, "step-000000023"}
    ckpt("stop")
    (newest / name).chmod(0o600)
    assert "DAMAGED" not in ckpt("verify", directory)


def flip(step):
    file = step / "rank-00000.safetensors"
    bytes_of = bytearray(file.read_bytes())
    bytes_of[-1] ^= 1
    file.chmod(0o600)
    file.write_bytes(bytes_of)


def test_what_was_repaired_is_restored_by_the_same_daemon(directory, tmp_path, ckpt, job):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    for step in directory.glob("step-*"):
        flip(step)
    told = run(sys.executable, "-c", TRAINER, directory, code=3)
    assert "2 checkpoints on storage are damaged" in told
    status = ckpt("status", status=1)
    assert "nothing could be restored: what is stored is damaged" in status
    assert "on storage step 20 (timeline 1), DAMAGED" in status
    assert " yes" not in status.split("ON STORAGE")[1].split("SLOT OF")[0]
    ckpt("verify", "--repair", directory, "--from", copy)
    assert job(dir=str(directory)).restore().step == 20


def test_a_step_that_was_abandoned_is_restored_by_its_path(directory, tmp_path, ckpt, job):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    newest = directory / "step-000000020"
    flip(newest)
    session = job(dir=str(directory))
    assert session.restore().step == 10
    session.abandon()
    ckpt("verify", "--repair", newest, "--from", copy / newest.name)
    session = job(dir=str(directory))
    assert session.restore().step == 10
    assert session.restore(path=str(newest)).step == 20


def test_a_damaged_step_is_passed_over_with_a_warning_that_says_what_may_mend_it(directory):
    flip(directory / "step-000000020")
    told = run(sys.executable, "-c", TRAINER, directory, code=0)
    assert "restored 10" in told
    warning = next(line for line in told.splitlines() if " warning " in line)
    assert "step 20" in warning
    assert "going on from step 10 abandons step 20, also if it is mended later" in warning
    assert "restore it by its path" in warning
    assert "`ckpt verify --repair STEP --from COPY` mends it" in warning
