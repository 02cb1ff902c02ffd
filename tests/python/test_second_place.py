"""Goal: a directory and a bucket as the two places of a job: copies at their pace, a restore from
whichever place has the newest good step, and tools that show what is where.

Method: moto's server with a proxy in front that fails as a test chooses; the directory, the memory
or the daemon is lost in between, and every value is compared.
"""

import json
import os
import shutil
import signal
import subprocess
import time

import bucket_server
import numpy
import pytest

import libckpt
from libckpt import errors

BUCKET = "s3://bucket/jobs/run"
ELEMENTS = 3_000_000  # 12 MB: three Chunks, and two parts of an upload.
PATIENCE = 60


@pytest.fixture
def server(monkeypatch, tmp_path):
    server = bucket_server.BucketServer(lambda: bucket_server.start_moto(tmp_path))
    for name, value in {**bucket_server.KEYS, "AWS_ENDPOINT_URL": server.proxy.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.stop()


@pytest.fixture
def near(tmp_path):
    return tmp_path / "nvme" / "run"


@pytest.fixture
def both(near):
    near.parent.mkdir()
    return f"{near}, {BUCKET}"


def items_of(step):
    weights = numpy.arange(ELEMENTS, dtype=numpy.float32) + step
    return {"weights": weights, "epoch": step}


def assert_is_of(found, step):
    assert found.step == step
    assert numpy.array_equal(found.items["weights"], items_of(step)["weights"])
    assert found.items["epoch"] == step


def save_all(session, steps):
    for step in steps:
        session.save(step, items_of(step))
        session.wait(step, "durable", PATIENCE)


@pytest.fixture
def status(programs):
    """The state of the daemon and its only job; also while that is degraded or has no trainer."""

    def read():
        command = [programs / "ckpt", "status", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 1), done.stderr
        found = json.loads(done.stdout)
        return found["daemon"], found["jobs"][0]

    return read


def wait_until(claim):
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline


def wait_for_copy(status, step):
    """Until the daemon says that the second place has the step, and is done with it."""

    def is_there():
        place = status()[1]["second_place"]
        return place["newest"] and place["newest"]["step"] == step and not place["copying"]

    wait_until(is_there)


def kill_daemon(status):
    os.kill(status()[0]["pid"], signal.SIGKILL)


def steps_in_bucket(server):
    keys = server.keys("jobs/run/step-")
    return sorted({int(key.split("step-")[1][:9]) for key in keys if key.endswith("manifest.json")})


def test_a_lost_directory_is_restored_from_the_bucket_and_filled_again(
    server, job, ckpt, status, both, near
):
    session = job(dir=f"{both} every 2", save_storage_interval=1)
    save_all(session, (1,))
    wait_for_copy(status, 1)
    save_all(session, (2, 3))
    wait_for_copy(status, 3)
    assert steps_in_bucket(server) == [1, 3]
    save_all(session, (4,))
    session.abandon()
    kill_daemon(status)
    shutil.rmtree(near)  # The machine is another one, too.

    again = job(dir=f"{both} every 2", save_storage_interval=1)
    assert_is_of(again.restore(), 3)
    save_all(again, (4, 5))
    wait_for_copy(status, 5)
    again.close()
    listed = ckpt("ls", both)
    assert listed.count(str(near)) == 1 and listed.count(BUCKET) == 1
    assert ckpt("verify", both).count("good ") == 2 + 3
    ckpt("stop")
    assert_is_of(job(dir=both, save_storage_interval=1).restore(), 5)


def test_the_tools_and_load_show_and_take_what_is_where(server, job, ckpt, status, both, near):
    session = job(dir=f"{both} every 100", save_storage_interval=1)
    save_all(session, (1,))
    wait_for_copy(status, 1)
    save_all(session, (2,))
    place = status()[1]["second_place"]
    assert place["directory"] == BUCKET and place["pace"] == "every 100"
    assert f"second place: {BUCKET} (every 100), has step 1 (timeline 1)" in ckpt("status")
    session.close()
    wait_until(lambda: steps_in_bucket(server) == [1, 2])  # The end copies the newest one.
    ckpt("stop")
    published = libckpt.list_published(both)
    assert [found.step for found in published.checkpoints] == [2, 2, 1, 1]
    in_bucket = [found.path.startswith("s3://") for found in published.checkpoints]
    assert in_bucket == [False, True, False, True]
    assert not published.damage and not published.history_lost

    def load(path):
        with job("reader") as session:
            return session.restore(path=path)

    assert_is_of(load(both), 2)
    (file,) = (near / "step-000000002").glob("*.safetensors")
    with file.open("r+b") as stream:
        stream.seek(5_000_000)
        stream.write(b"damage")
    assert_is_of(load(both), 2)
    assert "checksum" in ckpt("verify", both, status=1)
    shutil.rmtree(near)
    assert_is_of(load(both), 2)


def test_a_job_starts_in_time_though_its_bucket_never_answers(server, job, ckpt, both):
    session = job(dir=both, save_storage_interval=1)
    save_all(session, (1,))
    session.close()
    ckpt("stop")
    server.proxy.fault = lambda method, path: "hang"
    assert_is_of(job(dir=both, save_storage_interval=1).restore(), 1)


def test_a_bucket_that_is_away_harms_nothing_and_catches_up(server, job, ckpt, status, both):
    session = job(dir=both, save_storage_interval=1)
    save_all(session, (1,))
    wait_for_copy(status, 1)
    server.proxy.fault = lambda method, path: "reset"
    save_all(session, (2, 3, 4))
    wait_until(lambda: "the second place" in (status()[1]["degraded"] or ""))
    server.proxy.fault = lambda method, path: None
    save_all(session, (5,))
    wait_for_copy(status, 5)
    assert not status()[1]["degraded"]
    session.close()
    assert ckpt("verify", both).count("good ") == 5 + len(steps_in_bucket(server))


@pytest.mark.parametrize("label", ["manifest.before", "flush.rename.after"])
def test_a_daemon_that_is_killed_while_it_copies_leaves_no_half_step(
    server, job, ckpt, status, programs, monkeypatch, both, label
):
    # The first place passes the label, too: it comes first.
    monkeypatch.setenv("LIBCKPT_POINTS", f"{label}=kill@2")
    session = job(dir=both, save_storage_interval=1, raise_on_error=False)
    session.save(1, items_of(1))
    try:
        session.wait(1, "durable", PATIENCE)
    except errors.CheckpointError:
        pass
    session.abandon()
    monkeypatch.delenv("LIBCKPT_POINTS")
    subprocess.run([programs / "ckpt", "stop", "--no-flush"], capture_output=True, check=False)
    again = job(dir=both, save_storage_interval=1)
    found = again.restore()
    assert_is_of(found, 1)
    save_all(again, (2,))
    wait_for_copy(status, 2)
    again.close()
    ckpt("stop")
    assert ckpt("verify", BUCKET).count("DAMAGED") == 0
    assert server.uploads() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/a, /b, /c", "a job has two at most"),
        ("/a, /a", "both places are the same one"),
        ("/a every 3, /b", "`every` belongs behind the second place"),
        ("/a, az://container/run", "s3://"),
    ],
)
def test_places_that_no_job_can_have_are_refused(job, text, words):
    with pytest.raises(errors.InvalidArgument, match="dir|/a") as refused:
        job(dir=text)
    assert words in str(refused.value)
