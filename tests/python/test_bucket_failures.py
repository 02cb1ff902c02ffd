"""Goal: a server that fails or is slow in the middle of `ckpt export` or `ckpt cp` ends the command
with words and a code, nothing half is left to be found, and the same command then does it.

Method: moto's server behind a proxy that refuses, breaks or drips from some part of an upload on.
"""

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


def mend(server):
    server.proxy.fault = lambda method, path: None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refuse", "reset"])
def test_an_export_that_the_server_breaks_off_leaves_nothing(server, run, ckpt, how, tmp_path):
    there = "s3://bucket/out/model.safetensors"
    seen = fail_parts_from(server, 3, how)
    told = ckpt("export", run, there, status=1)
    assert len(seen) > 3  # It was tried again.
    assert told.startswith("ckpt export: ") and "out/model.safetensors" in told
    assert server.keys("out/") == [] and server.uploads() == []
    mend(server)
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
    assert told.startswith("ckpt cp: ") and "s3://bucket/there" in told
    assert not [key for key in server.keys("there/step-") if key.endswith("manifest.json")]
    assert "No checkpoint" in ckpt("ls", "s3://bucket/there", status=1)
    mend(server)
    assert "whole" in ckpt("cp", run, "s3://bucket/there")
    assert "good " in ckpt("verify", "s3://bucket/there") and server.uploads() == []


def test_a_slow_server_is_waited_for(server, run, ckpt):
    server.proxy.fault = lambda method, path: "drip" if method in ("GET", "POST") else None
    assert "whole" in ckpt("cp", run, "s3://bucket/there")
    assert "1 tensor" in ckpt("export", "s3://bucket/there", "s3://bucket/out/model.safetensors")
    mend(server)
    assert "good " in ckpt("verify", "s3://bucket/there")
