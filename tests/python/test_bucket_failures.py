"""Goal: a server that fails or is slow in the middle of `ckpt export` or `ckpt cp` ends the command
with words and a code, nothing half is left to be found, and the same command then does it.

Method: moto's server behind a proxy that refuses, breaks or drips from some part of an upload on,
hangs, or is not there; a daemon whose environment is not the trainer's.
"""

import json
import signal
import subprocess

import bucket_server
import numpy
import pytest

safetensors_numpy = pytest.importorskip("safetensors.numpy")

ELEMENTS = 8_000_000  # 32 MB: four parts of an upload.
WEIGHTS = numpy.arange(ELEMENTS, dtype=numpy.float32)


@pytest.fixture
def server(monkeypatch, tmp_path):
    yield from bucket_server.serve(bucket_server.start_moto, monkeypatch, tmp_path)


@pytest.fixture
def run(server, job, tmp_path):
    """A directory with one checkpoint."""
    with job(dir=str(tmp_path / "run"), save_storage_interval=1) as session:
        session.save(1, {"weights": WEIGHTS}, wait=30)
        session.wait(1, "durable", 60)
    return str(tmp_path / "run")


def fail_parts_from(server, first, how):
    """Parts of uploads fail from this one on."""
    seen = []

    def fault(method, path):
        if not bucket_server.is_part_of_upload(method, path):
            return None
        seen.append(path)
        return how if len(seen) >= first else None

    server.proxy.fault = fault
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refuse", "reset"])
def test_an_export_that_the_server_breaks_off_leaves_nothing(server, run, ckpt, how, tmp_path):
    there = "s3://bucket/out/model.safetensors"
    seen = fail_parts_from(server, 3, how)
    told = ckpt("export", run, there, status=1)
    assert len(seen) > 3  # It was tried again.
    assert "\nckpt export: " in f"\n{told}" and "out/model.safetensors" in told
    assert server.keys("out/") == [] and server.uploads() == []
    bucket_server.accept_all(server)
    ckpt("export", run, there)
    assert server.keys("out/") == ["out/model.safetensors"] and server.uploads() == []
    server.client.download_file("bucket", "out/model.safetensors", str(tmp_path / "m"))
    assert numpy.array_equal(safetensors_numpy.load_file(tmp_path / "m")["weights"], WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refuse", "reset"])
def test_a_copy_that_the_server_breaks_off_is_no_checkpoint_and_goes_on(server, run, ckpt, how):
    seen = fail_parts_from(server, 3, how)
    told = ckpt("cp", run, "s3://bucket/there", status=1)
    assert len(seen) > 3
    assert "\nckpt cp: " in f"\n{told}" and "s3://bucket/there" in told
    assert not [key for key in server.keys("there/step-") if key.endswith("manifest.json")]
    assert "No checkpoint" in ckpt("ls", "s3://bucket/there", status=1)
    bucket_server.accept_all(server)
    assert "whole" in ckpt("cp", run, "s3://bucket/there")
    assert "good " in ckpt("verify", "s3://bucket/there") and server.uploads() == []


def test_a_slow_server_is_waited_for(server, run, ckpt):
    server.proxy.fault = lambda method, path: "drip" if method in ("GET", "POST") else None
    assert "whole" in ckpt("cp", run, "s3://bucket/there")
    assert "1 tensor" in ckpt("export", "s3://bucket/there", "s3://bucket/out/model.safetensors")
    bucket_server.accept_all(server)
    assert "good " in ckpt("verify", "s3://bucket/there")


def test_a_server_that_is_not_there_is_given_up_soon_with_the_variable(server, ckpt, monkeypatch):
    (port,) = bucket_server.free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    for command in (("ls", "s3://bucket/run"), ("verify", "s3://bucket/run"),
                    ("inspect", "s3://bucket/run")):
        told = ckpt(*command, status=1)
        assert "4 tries failed" in told and "AWS_ENDPOINT_URL in the environment" in told, told


def test_a_server_that_hangs_is_named_while_it_is_waited_for(server, programs):
    server.proxy.fault = lambda method, path: "hang"
    with subprocess.Popen([programs / "ckpt", "ls", "s3://bucket/run"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as listing:
        line = listing.stderr.readline()  # It comes before the server answers.
        bucket_server.accept_all(server)
        server.proxy.released.set()
        rest = listing.communicate(timeout=60)[1]
    assert "no answer from http://127.0.0.1" in line and "s3://bucket/run" in line, line + rest


def test_a_place_that_may_not_be_read_or_written_ends_with_1(server, run, ckpt):
    server.proxy.fault = lambda method, path: "forbid"
    for command in (("ls", "s3://bucket/there"), ("cp", run, "s3://bucket/there"),
                    ("export", run, "s3://bucket/out/model.safetensors"),
                    ("gc", "s3://bucket/there")):
        assert "403" in ckpt(*command, status=1)
    bucket_server.accept_all(server)
    assert server.keys() == []


def test_an_interrupted_copy_to_a_failing_server_tries_nothing_again(server, run, programs):
    seen = bucket_server.refuse_parts(server)
    with subprocess.Popen([programs / "ckpt", "cp", run, "s3://bucket/there"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as copying:
        assert seen.wait(60)
        copying.send_signal(signal.SIGINT)
        told = copying.communicate(timeout=60)[1]
    assert copying.returncode == 1
    assert "interrupted" in told and "tries failed" not in told, told
    assert server.uploads() == []


def test_keys_that_only_the_trainer_has_are_missed_in_the_daemons_environment(
    server, job, ckpt, monkeypatch, tmp_path
):
    import libckpt

    monkeypatch.setenv("HOME", str(tmp_path))  # Without profiles.
    with monkeypatch.context() as without_keys:
        without_keys.delenv("AWS_ACCESS_KEY_ID")
        without_keys.delenv("AWS_SECRET_ACCESS_KEY")
        job("first").save(1, {"a": 1}, wait=30)
    pid = json.loads(ckpt("status", "--json"))["daemon"]["pid"]
    with pytest.raises(libckpt.CheckpointError) as refused:
        job("second", dir="s3://bucket/run", open_deadline="60s")
    told = str(refused.value)
    assert f"none in the environment of the daemon (ckptd, process {pid}, since" in told, told
    assert "`ckpt stop`" in told and "profile" in told
    told = ckpt("doctor", "--dir", "s3://bucket/run")
    assert f"that of the daemon, pid {pid}, is another one than here: AWS_ACCESS_KEY_ID" in told
