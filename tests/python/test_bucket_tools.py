"""Goal: `ckpt cp`, `gc`, `import` and `export` work with buckets as with directories, also when a
copy is interrupted, the server fails, or two copies run at once.

Method: moto's server (and SeaweedFS), with a proxy in front that fails or holds requests; the
copies are verified by `ckpt verify` and restored.
"""

import pathlib
import re
import signal
import subprocess

import bucket_server
import numpy
import pytest

safetensors_numpy = pytest.importorskip("safetensors.numpy")

DIR = "s3://bucket/jobs/run"
ELEMENTS = 5_000_000
SEAWEEDFS = pytest.param(bucket_server.start_seaweedfs, marks=pytest.mark.slow)
BOTH = [bucket_server.start_moto, SEAWEEDFS]


@pytest.fixture
def server(request, monkeypatch, tmp_path):
    start = getattr(request, "param", bucket_server.start_moto)
    yield from bucket_server.serve(start, monkeypatch, tmp_path)


def save(job, where, steps):
    session = job(dir=where, save_storage_interval=1)
    for step in steps:
        session.save(step, {"weights": numpy.arange(ELEMENTS, dtype=numpy.float32) + step})
        session.wait(step, "durable", 120)
    session.close()


def assert_restores(job, where, step):
    found = job(dir=str(where), save_storage_interval=1).restore()
    assert found.step == step
    expected = numpy.arange(ELEMENTS, dtype=numpy.float32) + step
    assert numpy.array_equal(found.items["weights"], expected)


@pytest.mark.parametrize("server", BOTH, indirect=True)
def test_a_copy_goes_to_a_bucket_to_another_one_and_back(server, job, ckpt, tmp_path):
    there, other, back = "s3://bucket/there", "s3://bucket/other/", tmp_path / "back"
    save(job, str(tmp_path / "run"), (1, 2))
    assert "whole" in ckpt("cp", str(tmp_path / "run"), there)
    assert "step-000000001" in ckpt("cp", str(tmp_path / "run" / "step-000000001"), there)
    assert ckpt("verify", there).count("good ") == 2
    ckpt("cp", there, other)
    ckpt("cp", f"{other}step-000000002", str(back))
    assert "there already" in ckpt("cp", there, str(back))
    assert "lies there already" in ckpt("cp", there, there, status=2)
    assert "lies inside the run" in ckpt("cp", there, f"{there}/new", status=2)
    assert ckpt("verify", str(back)).count("good ") == 1
    files = {path.name for path in (back / "step-000000002").iterdir()}
    assert files == {path.name for path in (tmp_path / "run" / "step-000000002").iterdir()}
    assert server.uploads() == []
    ckpt("stop")
    assert_restores(job, there, 2)


def until_taken(process, number):
    """Until a signal that was sent to a process waits no longer."""
    status = pathlib.Path(f"/proc/{process.pid}/status")
    while int(re.search(r"ShdPnd:\s*(\w+)", status.read_text())[1], 16) & 1 << (number - 1):
        pass


def test_an_interrupted_copy_ends_soon_and_goes_on(server, job, ckpt, programs, tmp_path):
    save(job, str(tmp_path / "run"), (1,))
    seen = bucket_server.refuse_parts(server)
    command = [programs / "ckpt", "cp", str(tmp_path / "run"), DIR]
    copying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert seen.wait(60)
    copying.send_signal(signal.SIGINT)
    until_taken(copying, signal.SIGINT)  # With its parts accepted it might end before.
    bucket_server.accept_all(server)
    _, told = copying.communicate(timeout=60)
    assert copying.returncode == 1, told
    assert "interrupted" in told and "goes on" in told
    assert not [key for key in server.keys() if key.endswith("manifest.json")]
    ckpt("cp", str(tmp_path / "run"), DIR)
    assert ckpt("verify", DIR).count("good ") == 1
    assert server.uploads() == []


def test_a_killed_copy_leaves_no_upload_when_the_next_one_is_done(
    server, job, ckpt, programs, tmp_path
):
    save(job, str(tmp_path / "run"), (1,))
    seen = bucket_server.refuse_parts(server)
    command = [programs / "ckpt", "cp", str(tmp_path / "run"), DIR]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as copying:
        assert seen.wait(60)
        copying.kill()
    assert len(server.uploads()) == 1
    bucket_server.accept_all(server)
    ckpt("cp", str(tmp_path / "run"), DIR)
    assert server.uploads() == []
    assert ckpt("verify", DIR).count("good ") == 1


@pytest.mark.parametrize("server", BOTH, indirect=True)
def test_two_copies_at_once_both_succeed(server, job, ckpt, programs, tmp_path):
    save(job, str(tmp_path / "run"), (1,))
    command = [programs / "ckpt", "cp", str(tmp_path / "run"), DIR]
    copies = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [copy.communicate(timeout=120)[1] for copy in copies]
    assert [copy.returncode for copy in copies] == [0, 0], told
    assert ckpt("verify", DIR).count("good ") == 1
    assert server.uploads() == []
    folders = {key.split("/")[3] for key in server.keys("jobs/run/step-000000001/t")}
    assert len(folders) == 1


@pytest.mark.parametrize("server", BOTH, indirect=True)
def test_garbage_in_a_bucket_is_shown_and_then_removed(server, job, ckpt):
    save(job, DIR, (1, 2, 3))
    ckpt("stop")
    left = "jobs/run/step-000000004/t1.00000000000000aa/rank-00000.safetensors"
    server.client.put_object(Bucket="bucket", Key=left, Body=b"half")
    server.client.put_object(Bucket="bucket", Key="jobs/run/notes.txt", Body=b"mine")
    before = server.keys()
    shown = ckpt("gc", DIR, "--keep", "2", "--dry-run")
    assert "Would remove 1 checkpoint and no attempts" in shown
    assert "1 attempt to save, of the last hour" in shown
    assert server.keys() == before
    assert "Removed 1 checkpoint" in ckpt("gc", DIR, "--keep", "2")
    after = server.keys()
    assert left in after and "jobs/run/notes.txt" in after
    assert not [key for key in after if "step-000000001" in key]
    assert ckpt("verify", DIR).count("good ") == 2
    ckpt("gc", "s3://bucket/elsewhere", "--keep", "2", status=1)


def test_attempts_in_a_bucket_that_a_daemon_here_serves_are_its_own(server, job, ckpt):
    session = job(dir=DIR, save_storage_interval=1)
    session.save(1, {"weights": numpy.zeros(10)})
    session.wait(1, "durable", 60)
    left = "jobs/run/step-000000004/t1.00000000000000aa/rank-00000.safetensors"
    server.client.put_object(Bucket="bucket", Key=left, Body=b"half")
    assert "daemon of this node works here" in ckpt("gc", DIR + "/")
    session.close()


def test_models_are_imported_from_and_into_a_bucket(server, job, ckpt, tmp_path):
    weights = {"weights": numpy.arange(ELEMENTS, dtype=numpy.float32)}
    safetensors_numpy.save_file(weights, tmp_path / "model.safetensors")
    server.client.upload_file(str(tmp_path / "model.safetensors"), "bucket", "m/model.safetensors")
    told = ckpt("import", str(tmp_path / "model.safetensors"), "s3://bucket/one")
    assert re.search(r"1 tensor of .* from 1 file, as job one", told)
    ckpt("import", "s3://bucket/m/", "s3://bucket/two", "--job", "llama")
    ckpt("import", "s3://bucket/m/model.safetensors", str(tmp_path / "three"))
    for where in ("s3://bucket/one", "s3://bucket/two", str(tmp_path / "three")):
        assert ckpt("verify", where).count("good ") == 1
    assert ckpt("diff", "s3://bucket/two", str(tmp_path / "three"))
    ckpt("import", "s3://bucket/none", "s3://bucket/four", status=1)
    ckpt("import", "s3://bucket/m", "s3://bucket/one", status=2)
    assert server.uploads() == []


@pytest.mark.parametrize("server", BOTH, indirect=True)
@pytest.mark.parametrize(("layout", "name"), [("safetensors", "model.safetensors"),
                                              ("torch", "model.pt"), ("hf", "hf"), ("dcp", "dcp")])
def test_an_export_to_a_bucket_has_the_bytes_of_one_to_a_disk(server, job, ckpt, tmp_path,
                                                               layout, name):
    save(job, DIR, (1,))
    there = ("export", DIR, f"s3://bucket/out/{name}", "--format", layout)
    ckpt("export", DIR, str(tmp_path / name), "--format", layout)
    ckpt(*there)
    paths = (path for path in (tmp_path / name, *tmp_path.glob(f"{name}/*")) if path.is_file())
    expected = {f"out/{path.relative_to(tmp_path)}": path.read_bytes() for path in paths}

    def assert_is_there():
        keys = [key for key in server.keys() if key.startswith("out/")]
        assert sorted(keys) == sorted(expected)
        for key, content in expected.items():
            assert server.client.get_object(Bucket="bucket", Key=key)["Body"].read() == content

    assert_is_there()
    assert "--force" in ckpt(*there, status=2)
    ckpt(*there, "--force")
    assert_is_there()
    assert server.uploads() == []


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_what_is_damaged_is_repaired_from_a_bucket_and_the_rest_is_left(
    server, job, ckpt, tmp_path
):
    run = tmp_path / "run"
    save(job, str(run), (1, 2))
    ckpt("stop")
    files = [run / f"step-00000000{step}" / "rank-00000.safetensors" for step in (1, 2)]
    ckpt("cp", str(run), DIR)  # The newest alone.
    whole = files[1].read_bytes()
    for file in files:
        flip_last_byte(file)
    told = ckpt("verify", "--repair", str(run), "--from", DIR, status=1)
    assert re.search(r"left as it is .*step-000000001.*no whole copy of step 1", told)
    assert re.search(r"repaired .*step-000000002: rank-00000.safetensors", told)
    assert files[1].read_bytes() == whole
    flip_last_byte(files[0])
    assert ckpt("verify", str(run)).count("good ") == 2

    key = next(key for key in server.keys("jobs/run/step-000000002/") if key.endswith("tensors"))
    server.client.put_object(Bucket="bucket", Key=key, Body=b"half")
    ckpt("verify", DIR, status=1)
    told = ckpt("verify", "--repair", DIR, "--from", str(run / "step-000000002"))
    assert "repaired" in told and "good " in told
    assert server.uploads() == []
    ckpt("verify", "--repair", DIR, status=2)
