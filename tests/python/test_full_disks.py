"""Goal: saves on their way to a disk that is full are waited for once, not one after the other, and
only for moments once that is known. They come when there is room again, unless a newer one is
there. The log names the option that decides what stays in the framework's folder.

Method: a queue whose session says what that of a full disk does; then a disk that is full.
"""

import contextlib
import itertools
import logging
import subprocess

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402
from libckpt.core.files import _full, _publish_queue  # noqa: E402

PROBLEM = "step 3 is not stored: allocate (No space left on device)"


class FullDisk:
    """In the place of a session."""

    is_closed = False

    def __init__(self, waits, fails_after=0.0):
        self.waits, self.problem, self.durable = waits, PROBLEM, None
        self.fails_after = fails_after  # Seconds of waits.

    def counts(self):
        fails = sum(self.waits) > self.fails_after
        return {"notice": self.problem if fails else "", "durable": self.durable}

    def wait(self, step, level, deadline):
        self.waits.append(deadline)
        raise libckpt.Unavailable(f"step {step}: {self.problem}")


class Publish:
    def __init__(self, path):
        self.paths = [path]

    def __call__(self, _, files):
        self.paths[0].write_bytes(files["file"].read_bytes())


@pytest.fixture
def queue(tmp_path, runtime):
    found = _publish_queue.PublishQueue(
        "job", tmp_path / "job", rank=0, world_size=1, advice="save_total_limit says how many stay"
    )
    session = found.session
    yield found
    found.session = session
    found.close()


def test_saves_that_wait_together_for_a_full_disk_wait_once(queue, tmp_path, caplog):
    waits, whole = [], _publish_queue.FAILING_DEADLINE
    queue.session, own = FullDisk(waits), queue.session
    for step in (1, 2):
        queue.post(step, Publish(tmp_path / f"{step}.pt"))
    _publish_queue.settle(wait=True)
    assert sum(waits) == whole + _publish_queue.FAILED_DEADLINE
    waits.clear()
    queue.post(3, Publish(tmp_path / "3.pt"))  # This one was not there to wait.
    _publish_queue.settle(wait=True)
    assert sum(waits) == whole
    lost = [message for message in caplog.messages if "is not published" in message]
    assert len(lost) == 3
    assert all(f"{step}.pt is not published" in told for step, told in enumerate(lost, 1))
    assert all("save_total_limit says how many stay" in told for told in caplog.messages)
    queue.session = own


def test_storage_that_works_again_is_waited_for_as_ever(queue, tmp_path):
    waits = []
    queue.session, own = FullDisk(waits), queue.session
    for step in (1, 2):
        queue.post(step, Publish(tmp_path / f"{step}.pt"))
    assert queue.publish_first(_publish_queue.DURABLE_DEADLINE)
    waits.clear()
    queue.session.problem = ""
    assert queue.publish_first(30.0)
    assert sum(waits) == 30.0
    queue.session = own


def test_a_failure_on_the_way_ends_the_wait_in_moments(queue, tmp_path, caplog):
    waits = []
    queue.session, own = FullDisk(waits, fails_after=20.0), queue.session
    queue.post(1, Publish(tmp_path / "1.pt"))
    _publish_queue.settle(wait=True)
    assert 20.0 < sum(waits) <= 25.0
    slow, lost = caplog.messages
    assert "is not on storage yet" in slow
    assert f"1.pt is not published: step 1: {PROBLEM}" in lost
    assert "it may still come" in lost
    queue.session = own


@pytest.fixture
def given_up(queue, tmp_path):
    """A save that a full disk kept from its place, which has room now."""
    own = queue.session
    step = queue.capture({"file": torch.ones(2)})
    own.wait(step, "durable", 60)
    queue.session = FullDisk([])
    queue.post(step, Publish(tmp_path / "new"), weights="file")
    _publish_queue.settle(wait=True)
    queue.session = own
    return tmp_path / "new"


def test_a_save_that_was_given_up_comes_once_there_is_room(given_up, queue):
    assert not given_up.exists() and not queue.waiting
    assert _publish_queue._watching  # The next step looks for it.
    _publish_queue.settle()
    assert given_up.exists()
    assert not queue.late and not _publish_queue._watching


def test_what_is_newer_than_a_save_that_was_given_up_stays(given_up):
    given_up.write_text("by stock torch")
    _publish_queue.settle()
    assert given_up.read_text() == "by stock torch"


def test_a_save_that_was_given_up_comes_before_the_next_one(given_up, queue):
    queue.post(queue.capture({"file": torch.zeros(9)}), Publish(given_up), weights="file")
    _publish_queue.settle(wait=True)
    assert given_up.read_bytes().endswith(bytes(36))
    assert not queue.late


def test_a_folder_that_is_saved_again_is_not_the_late_one(given_up, queue):
    queue.late.forget([given_up])
    _publish_queue.settle()
    assert not given_up.exists()


def test_a_short_wait_is_none_that_others_have_waited_too(queue, tmp_path):
    waits = []
    queue.session, own = FullDisk(waits), queue.session
    for step in (1, 2):
        queue.post(step, Publish(tmp_path / f"{step}.pt"))
    assert queue.publish_first(_publish_queue.FAILED_DEADLINE)
    waits.clear()
    assert queue.publish_first(_publish_queue.DURABLE_DEADLINE)
    assert sum(waits) == _publish_queue.FAILING_DEADLINE
    queue.session = own


@pytest.mark.parametrize(("told", "is_full"), [(PROBLEM, True), ("(Disk quota exceeded)", True),
                                               ("(Permission denied)", False)])  # fmt: skip
def test_only_a_full_disk_gets_the_advice(told, is_full):
    advised = _full.advised(libckpt.StorageError(told), "make room")
    assert advised == (f"{told}; make room" if is_full else told)


def test_in_a_frameworks_folder_nobody_is_told_of_libckpts_own_number(tmp_path, runtime, caplog,
                                                                      capfd):  # fmt: skip
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user cannot mount a file system")
    queue = None
    try:
        queue = _publish_queue.PublishQueue("full", disk / ".libckpt" / "job", rank=0,
                                            world_size=1, advice="save_top_k it is")  # fmt: skip
        with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for _ in itertools.count():
                file.write(bytes(4096))
        with (disk / "filler").open("ab") as file:
            file.truncate(file.tell() - (64 << 10))  # For small files.
        queue.post(queue.capture({"w": torch.ones(100_000)}), Publish(disk / "file"))
        with caplog.at_level(logging.WARNING, logger="libckpt"):
            while "No space left" not in (queue.session.counts()["degraded"] or ""):
                with contextlib.suppress(libckpt.Unavailable):
                    queue.session.wait(queue.waiting[0].step, "durable", 0.05)
            assert queue.publish_first(1.0)
        told = caplog.text + capfd.readouterr().err
        assert "it needs room beside them; save_top_k it is" in told
        assert "max_ckpt_num" not in told
    finally:
        if queue is not None:
            queue.close()  # Before its disk goes.
        subprocess.run(["umount", "--lazy", str(disk)], check=False)
