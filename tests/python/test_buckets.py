"""Goal: `dir` may be s3://bucket/prefix: saving, loading and the tools work there as in a
directory, also when the server fails, the daemon is killed, or two daemons save the same steps.

Method: moto's server and SeaweedFS, with a proxy in front of each that refuses, breaks, loses and
cuts off what a test chooses. All memory is lost before a restore, and every value is compared.
"""

import os
import pathlib
import random
import subprocess
import sys
import time

import bucket_server
import numpy
import pytest
from test_arrays import at_once

import libckpt
from libckpt import errors
from libckpt.core.files import _reader

DIR = "s3://bucket/jobs/run"
ELEMENTS = 5_000_000  # 20 MB: three parts of an upload.


@pytest.fixture
def server(request, monkeypatch, tmp_path):
    start = getattr(request, "param", bucket_server.start_moto)
    yield from bucket_server.serve(start, monkeypatch, tmp_path)


def items_of(step, elements=ELEMENTS):
    weights = numpy.arange(elements, dtype=numpy.float32) + step
    return {"weights": weights, "bias": numpy.full(7, step, numpy.int64), "epoch": step}


def assert_is_of(found, step, elements=ELEMENTS):
    assert found.step == step
    expected = items_of(step, elements)
    assert numpy.array_equal(found.items["weights"], expected["weights"])
    assert numpy.array_equal(found.items["bias"], expected["bias"])
    assert found.items["epoch"] == step


def save_all(session, steps, elements=ELEMENTS, deadline=120):
    for step in steps:
        session.save(step, items_of(step, elements))
        session.wait(step, "durable", deadline)


SEAWEEDFS = pytest.param(bucket_server.start_seaweedfs, marks=pytest.mark.slow)
BOTH = [bucket_server.start_moto, SEAWEEDFS]


@pytest.mark.parametrize("server", BOTH, indirect=True)
def test_a_run_in_a_bucket_is_saved_listed_verified_and_restored(server, job, ckpt, tmp_path):
    session = job(dir=DIR, save_storage_interval=1, max_ckpt_num=2)
    with pytest.raises(errors.NotFound):
        session.restore()
    save_all(session, (1, 2, 3))
    session.close()
    assert ckpt("ls", DIR).count("published") == 2
    assert ckpt("verify", DIR).count("good ") == 2
    assert "weights" in ckpt("inspect", DIR)
    assert ckpt("diff", f"{DIR}/step-000000002", f"{DIR}/step-000000003", status=1)
    out = tmp_path / "out.safetensors"
    ckpt("export", DIR, str(out))
    assert out.stat().st_size > 4 * ELEMENTS
    listed, damage, lost = libckpt._native.published(DIR)
    assert [found["step"] for found in listed] == [3, 2]
    assert not damage and not lost
    assert server.uploads() == []
    assert not [key for key in server.keys() if "step-000000001" in key]

    ckpt("stop")  # All memory is gone.
    assert_is_of(job(dir=DIR, save_storage_interval=1).restore(), 3)


def test_a_damaged_object_is_found_and_passed_over(server, job, ckpt):
    session = job(dir=DIR, save_storage_interval=1)
    save_all(session, (1, 2))
    session.close()
    ckpt("stop")
    key = next(key for key in server.keys("jobs/run/step-000000002/") if key.endswith("tensors"))
    content = bytearray(server.client.get_object(Bucket="bucket", Key=key)["Body"].read())
    content[-1] ^= 1
    server.client.put_object(Bucket="bucket", Key=key, Body=bytes(content))
    assert "checksum" in ckpt("verify", DIR, status=1)
    assert_is_of(job(dir=DIR, save_storage_interval=1).restore(), 1)


def test_copies_are_compared_in_a_bucket_too(server, job, ckpt):
    sessions = [job(dir=DIR, rank=rank, world_size=2, save_storage_interval=1) for rank in (0, 1)]

    def save_one(rank, session):
        norm = libckpt.Array("norm", numpy.full(8, float(rank)), global_shape=(8,), offset=(0,),
                             copy=rank, copies=2)  # fmt: skip
        session.save(1, {"n": rank}, arrays=[norm])
        session.wait(1, "durable", 120)

    at_once(sessions, save_one)
    differ = sessions[0].status()["daemon"]["copies_differ"]
    assert (differ["tensor"], differ["ranks"]) == ("norm", [[0], [1]])
    assert not [key for key in server.keys() if key.endswith(".copies")]
    assert ckpt("verify", DIR).count("good ") == 1


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_failing_requests_are_survived(server, job, ckpt, seed):
    draw = random.Random(seed)

    def fault(method, path):
        if draw.random() > 0.25:
            return None
        return draw.choice(["refuse", "reset", "lose", "truncate", "drip"])

    server.proxy.fault = fault
    session = job(dir=DIR, save_storage_interval=1, max_ckpt_num=2)
    save_all(session, (1, 2, 3))
    session.close()
    ckpt("stop")
    session = job(dir=DIR, save_storage_interval=1, max_ckpt_num=2)
    assert_is_of(session.restore(), 3)
    server.proxy.fault = lambda method, path: None
    # A removal that failed is made up for after the next save.
    save_all(session, (4,))
    session.close()
    ckpt("stop")
    assert ckpt("verify", DIR).count("good ") == 2


def test_a_server_that_is_away_holds_up_no_training(server, job):
    session = job(dir=DIR, save_storage_interval=1)
    save_all(session, (1,))
    server.proxy.fault = lambda method, path: "reset"
    for step in range(2, 12):
        session.save(step, items_of(step, 1000))
        session.wait(step, "committed", 30)
    seen = len(server.proxy.seen)
    server.proxy.fault = lambda method, path: None
    assert seen > 0
    for step in range(12, 200):
        session.save(step, items_of(step, 1000))
        session.wait(step, "committed", 30)
        try:
            session.wait(step, "durable", 5)
            break
        except errors.CheckpointError:
            continue
    assert len([key for key in server.keys("jobs/run/step-") if key.endswith("t.json")]) >= 2


@pytest.mark.parametrize("label", ["flush.write.first", "flush.fsync.after", "manifest.before"])
def test_an_upload_of_a_killed_daemon_is_no_step_and_is_cleared(
    server, job, ckpt, programs, monkeypatch, label
):
    monkeypatch.setenv("LIBCKPT_POINTS", f"{label}=kill@2")
    session = job(dir=DIR, save_storage_interval=1, raise_on_error=False)
    save_all(session, (1,))
    session.save(2, items_of(2))
    with pytest.raises(errors.CheckpointError):
        session.wait(2, "durable", 60)
    session.abandon()
    monkeypatch.delenv("LIBCKPT_POINTS")
    subprocess.run([programs / "ckpt", "stop", "--no-flush"], capture_output=True, check=False)
    listed = [line.split() for line in ckpt("ls", DIR).splitlines() if "published" in line]
    assert [line[1] for line in listed] == ["1"]
    assert server.keys("jobs/run/step-000000002/") or server.uploads()
    again = job(dir=DIR, save_storage_interval=1)
    assert_is_of(again.restore(), 1)
    save_all(again, (2,))
    again.close()
    assert server.uploads() == []
    folders = {key.split("/")[3] for key in server.keys("jobs/run/step-000000002/")}
    assert len([name for name in folders if name.startswith("t")]) == 1
    assert ckpt("verify", DIR).count("good ") == 2


@pytest.mark.slow
@pytest.mark.parametrize("server", BOTH, indirect=True)
def test_one_of_two_daemons_wins_each_step_that_both_save(
    server, runtime, ckpt, programs, tmp_path
):
    script = pathlib.Path(__file__).parent / "trainers" / "bucket_steps.py"
    directories = [tmp_path / "one", tmp_path / "other"]
    trainers = [
        subprocess.Popen(
            [sys.executable, script, DIR, "1", "2", "3"], text=True,
            stdout=subprocess.PIPE, env={**os.environ, "LIBCKPT_RUNTIME_DIR": str(directory)},
        )  # fmt: skip
        for directory in directories
    ]
    told = [trainer.communicate(timeout=120)[0].split() for trainer in trainers]
    for directory in directories:
        stopped = [programs / "ckpt", "stop", "--no-flush", "--runtime-dir", directory]
        subprocess.run(stopped, capture_output=True, check=False)
    assert all(trainer.returncode == 0 for trainer in trainers)
    durable = set(told[0]) | set(told[1])
    assert durable
    good = [line for line in ckpt("verify", DIR).splitlines() if line.startswith("good ")]
    for step in durable:
        assert len([line for line in good if f"step-{int(step):09}" in line]) == 1
        found = server.keys(f"jobs/run/step-{int(step):09}/")
        assert len([key for key in found if key.endswith("manifest.json")]) == 1


@pytest.mark.parametrize("path", ["gcs://bucket/run", "az://container/run", "s3:/bucket/run"])
def test_other_schemes_are_refused_with_what_to_use(runtime, path):
    with pytest.raises(errors.InvalidArgument, match="write|two slashes|mount"):
        libckpt.init("job", path, raise_on_error=True)


def test_a_restore_takes_a_path_in_a_bucket(server, job):
    session = job(dir=DIR, save_storage_interval=1)
    save_all(session, (1, 2), elements=100)
    session.close()
    for path in (DIR, "s3://bucket/jobs", f"{DIR}/step-000000002"):
        with job("other", memory_budget="64MiB") as other:
            assert_is_of(other.restore(path=path), 2, elements=100)
    with job("none") as other:
        assert other.restore_or({}, -1, path=f"{DIR}/step-000000001") == 1
        with pytest.raises(errors.NotFound, match="s3://bucket/nothing"):
            other.restore(path="s3://bucket/nothing")


@pytest.mark.slow
def test_a_server_that_never_answers_is_given_up(server, ckpt):
    server.proxy.fault = lambda method, path: "hang"
    assert "bytes per second" in ckpt("ls", DIR, status=1)  # Within the command's own limit.
    assert len(server.proxy.seen) == 3


def test_flush_rate_holds_for_buckets(server, job):
    session = job(dir=DIR, save_storage_interval=1, flush_rate=10_000_000)
    begin = time.monotonic()
    save_all(session, (1,))
    assert time.monotonic() - begin >= 1  # 20 MB, less what may go at once.


def test_a_loaded_path_may_lie_in_a_bucket(server, job):
    session = job(dir=DIR, save_storage_interval=1)
    save_all(session, (4,))
    session.close()
    assert any(bucket_server.is_part_of_upload(*request) for request in server.proxy.seen)
    shapes = []

    def choose(stored, structure):
        assert structure is not None
        shapes.extend(tuple(shape) for _, _, shape, *_ in stored)
        return []

    for path in (DIR, f"{DIR}/step-000000004"):
        with _reader.opened() as read:
            assert read(path, 0, choose)["step"] == 4
    assert shapes.count((ELEMENTS,)) == 2
