"""Goal: `dir` may be gs://bucket/prefix: jobs save and restore there by Google's own requests.

Method: moto's server behind a proxy that speaks Google's dialect as its documents have it, checks
every signature, and refuses or ignores what is Amazon's.
"""

import bucket_server
import google_dialect
import numpy
import pytest

from libckpt import errors

DIR = "gs://bucket/jobs/run"
ELEMENTS = 5_000_000  # 20 MB: three parts of an upload.


@pytest.fixture
def server(monkeypatch, tmp_path):
    for served in bucket_server.serve(bucket_server.start_moto, monkeypatch, tmp_path):
        served.proxy.dialect = google_dialect.Dialect()
        monkeypatch.setenv("LIBCKPT_GS_ENDPOINT", served.proxy.url)
        for name, value in google_dialect.KEYS.items():
            monkeypatch.setenv(name, value)
        yield served


def save(session, steps):
    for step in steps:
        session.save(step, {"weights": numpy.arange(ELEMENTS, dtype=numpy.float32) + step})
        session.wait(step, "durable", 120)


def test_a_run_is_saved_listed_verified_copied_and_restored(server, job, ckpt, tmp_path):
    session = job(dir=DIR, save_storage_interval=1, max_ckpt_num=2)
    save(session, (1, 2, 3))
    session.close()
    assert ckpt("ls", DIR).count("published") == 2
    assert ckpt("verify", DIR).count("good ") == 2
    ckpt("cp", DIR, str(tmp_path / "copy"))
    ckpt("cp", str(tmp_path / "copy"), "gs://bucket/again")
    assert ckpt("verify", "gs://bucket/again").count("good ") == 1
    assert "Removed 1 checkpoint" in ckpt("gc", DIR, "--keep", "1")
    assert server.uploads() == []
    ckpt("stop")
    found = job(dir=DIR, save_storage_interval=1).restore()
    assert found.step == 3
    assert numpy.array_equal(
        found.items["weights"], numpy.arange(ELEMENTS, dtype=numpy.float32) + 3
    )


def test_wrong_keys_are_refused_by_name(server, ckpt, monkeypatch):
    monkeypatch.setenv("LIBCKPT_GS_SECRET_ACCESS_KEY", "wrong")
    assert "GOOG1KEY" in ckpt("ls", DIR, status=1)
    monkeypatch.delenv("LIBCKPT_GS_SECRET_ACCESS_KEY")
    assert "LIBCKPT_GS_SECRET_ACCESS_KEY" in ckpt("ls", DIR, status=1)
    assert server.keys() == []


def test_a_server_that_ignores_generations_is_refused(server, job):
    server.proxy.dialect.refusal = lambda *request: None
    with pytest.raises(errors.CheckpointError, match="conditional writes"):
        job(dir=DIR, save_storage_interval=1).restore()
