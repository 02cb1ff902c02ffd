"""Goal: what the code leaves open comes from the environment, then the file, then the defaults.

Method: sessions of which environment or file tell the directory, the interval of storage and the
room for plain data; what is stored, and what has room, shows which value holds.
"""

import os
import time

import pytest

import libckpt
from libckpt.core import _settings

numpy = pytest.importorskip("numpy")

SECONDS_MAX = 60


@pytest.fixture(params=["environment", "file"])
def settle(request, tmp_path, monkeypatch):
    """Gives options where a trainer's code does not."""

    def settle(**options):
        if request.param == "file":
            lines = [f"  {name} =  {value} \n" for name, value in options.items()]
            (tmp_path / "conf").write_text("".join(["# rank = 7\n", "\n", *lines]))
            monkeypatch.setenv("LIBCKPT_CONFIG", str(tmp_path / "conf"))
        for name, value in options.items() if request.param == "environment" else ():
            monkeypatch.setenv(f"LIBCKPT_{name.upper()}", str(value))

    return settle


def stores_each_step(session):
    """Whether steps go to storage without being asked for there; the first one always does."""
    ends = time.monotonic() + SECONDS_MAX
    for step in (1, 2):
        session.save(step, {"w": numpy.ones(3)}).committed.result(SECONDS_MAX)
        while session.counts()["durable"] != step and time.monotonic() < ends:
            time.sleep(0.002)
    return session.counts()["durable"] == 2


def test_the_interval_of_storage_is_not_that_of_a_default(job, settle, tmp_path):
    settle(save_storage_interval=1)
    assert stores_each_step(job(dir=tmp_path / "dir"))


def test_the_room_for_plain_data_is_not_that_of_a_default(job, settle):
    settle(blob_capacity="16MiB")
    assert job().save(1, {"text": "x" * (6 << 20)})


def test_the_directory_is_that_which_holds(job, settle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settle(dir="dir/")
    session = job()
    assert session.dir == session.counts()["dir"] == str(tmp_path / "dir")
    session.save(1, {"w": numpy.ones(3)}).committed.result(SECONDS_MAX)
    session.flush()
    assert session.counts()["durable"] == 1
    assert os.listdir(tmp_path / "dir")


def test_the_code_is_over_environment_and_file(job, settle, tmp_path):
    settle(dir=tmp_path / "theirs", save_storage_interval="1h", blob_capacity="1KiB")
    session = job(dir=tmp_path / "ours", save_storage_interval=1, blob_capacity=8 << 20)
    assert session.dir == str(tmp_path / "ours")
    assert stores_each_step(session)
    assert session.save(3, {"w": numpy.ones(3), "text": "x" * (6 << 20)})
    assert not (tmp_path / "theirs").exists()


def test_a_file_that_cannot_be_read_is_refused_by_the_library(job, tmp_path, monkeypatch):
    monkeypatch.setenv("LIBCKPT_CONFIG", str(tmp_path / "none"))
    with pytest.raises(libckpt.StorageError, match="none"):
        job()


def test_a_file_that_is_none_is_refused_and_holds_nobody(job, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("LIBCKPT_CONFIG", str(tmp_path / "fifo"))
    with pytest.raises(libckpt.StorageError, match="no regular file"):
        job()


def test_replicas_are_compared_at_the_interval_that_the_library_chooses(tmp_path):
    assert _settings.storage_interval({"dir": tmp_path}) == "30min"
    assert _settings.storage_interval({"dir": tmp_path, "save_storage_interval": None}) == "30min"
    assert _settings.storage_interval({"dir": tmp_path, "save_storage_interval": 20}) == "20"
    assert _settings.storage_interval({}) is None
