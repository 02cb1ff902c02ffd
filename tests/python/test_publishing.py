"""Goal: publishing that was cut off anywhere is completed by whoever does it again.

Method: the publishing of sets and of folders is ended by an exception at each call that changes the
file system, one after the other, and then done again from what was noted.
"""

import os
import shutil

import pytest

from libckpt import errors
from libckpt.core.files import _disk, _publish_queue
from libckpt.transformers._folders import Folders
from libckpt.torch._published_sets import PublishedSets

CHANGES = ("link", "rename", "symlink", "unlink", "mkdir", "fsync", "rmdir")


class CutOff(BaseException):
    pass


class Cutter:
    """Lets `count` changes pass."""

    def __init__(self, monkeypatch, count):
        self.left = count
        for name in CHANGES:
            self._count(monkeypatch, name, getattr(os, name))

    def _count(self, monkeypatch, name, real):
        def counted(*arguments, **options):
            if self.left == 0:
                raise CutOff
            self.left -= 1
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, counted)


def cut_everywhere(monkeypatch, prepare, publish, check):
    for count in range(1000):
        prepare()
        with monkeypatch.context() as patch:
            cutter = Cutter(patch, count)
            try:
                publish()
            except CutOff:
                pass
        check()
        publish()
        check(is_done=True)
        if cutter.left > 0:
            return count
    pytest.fail("it never ends")


def test_a_set_is_whole_wherever_its_publishing_ends(tmp_path, monkeypatch):
    exp_dir = tmp_path / "exp"
    names = ("model.pt", "state.json")

    def prepare():
        shutil.rmtree(tmp_path / "exp", ignore_errors=True)
        exp_dir.mkdir()
        (tmp_path / "member").write_text("2")
        sets = PublishedSets(exp_dir)
        (sets.work.begin("zero") / "best.pt").write_text("best")
        (sets.work.folder("zero") / "old.pt").write_text("old")
        sets.publish("zero", {})
        for name in (*names, "plain.txt"):
            (exp_dir / name).write_text("1")
        (sets.work.begin("two") / "state.json").write_text("2")
        deleted = {name: _disk.identity(exp_dir / name) for name in ("old.pt", "plain.txt")}
        sets.work.note("two", {"step": 1, "deleted": deleted})

    def publish():
        sets = PublishedSets(exp_dir)
        for name, facts in sets.work.noted():
            sets.publish(name, {"model.pt": tmp_path / "member"}, facts)

    def check(is_done=False):
        found = {(exp_dir / name).read_text() for name in names}
        assert found == {"2"} if is_done else len(found) == 1
        assert (exp_dir / "best.pt").read_text() == "best"
        if found == {"1"}:  # Files that go with the new set go after it has come.
            assert ((exp_dir / "old.pt").read_text(), (exp_dir / "plain.txt").read_text()) == (
                "old",
                "1",
            )
        if is_done:
            assert sorted(os.listdir(exp_dir)) == [".libckpt", "best.pt", *names]

    assert cut_everywhere(monkeypatch, prepare, publish, check) > 20


def test_a_folder_is_whole_wherever_its_publishing_ends(tmp_path, monkeypatch):
    folders = Folders(tmp_path / "output")

    def prepare():
        shutil.rmtree(tmp_path / "output", ignore_errors=True)
        (tmp_path / "member").write_text("2")
        folder = folders.work.begin("5") / "checkpoint-5"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        folders.work.note("5", {"step": 1})

    def publish():
        for name, _ in folders.work.noted():
            folders.publish(int(name), {"optimizer.pt": tmp_path / "member"})

    def check(is_done=False):
        path = folders.path(5)
        if is_done or path.exists():
            assert {file.name for file in path.iterdir()} == {"config.json", "optimizer.pt"}
            assert (path / "optimizer.pt").read_text() == "2"

    assert cut_everywhere(monkeypatch, prepare, publish, check) > 5


def test_a_folder_that_takes_the_place_of_another_is_one_or_the_other(tmp_path, monkeypatch):
    """Also after a second end of the process: the old one does not come back."""
    folders = Folders(tmp_path / "output")

    def prepare():
        shutil.rmtree(tmp_path / "output", ignore_errors=True)
        (tmp_path / "member").write_text("new")
        folders.path(5).mkdir(parents=True)
        for name in ("config.json", "optimizer.pt"):
            (folders.path(5) / name).write_text("old")
        folder = folders.work.begin("5") / "checkpoint-5"
        folder.mkdir()
        (folder / "config.json").write_text("new")
        folders.work.note("5", {"step": 1})

    def publish():
        for name, _ in folders.work.noted():
            folders.publish(int(name), {"optimizer.pt": tmp_path / "member"})

    def check(is_done=False):
        texts = {file.read_text() for file in folders.path(5).iterdir()}
        assert texts == {"new"} or (texts == {"old"} and not is_done)

    assert cut_everywhere(monkeypatch, prepare, publish, check) > 5


def test_rotation_keeps_the_newest_and_the_best(tmp_path):
    folders = Folders(tmp_path)
    for number in (1, 2, 3, 4, 10):
        folders.path(number).mkdir()
    folders.rotate(3, str(folders.path(2)), folders.remove)
    assert folders.numbers() == [2, 4, 10]
    folders.rotate(1, str(folders.path(2)), folders.remove)
    assert folders.numbers() == [2, 10]
    folders.rotate(None, None, folders.remove)
    assert folders.numbers() == [2, 10]


def test_where_there_are_no_hard_links_files_are_copied(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("not here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("x")
    _disk.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "x"


class WaitedFor:
    """A queue's session: the waits for its steps."""

    def __init__(self, refuses):
        self.refuses, self.waits = refuses, []

    def wait(self, step, level, deadline):
        assert 0 < deadline <= _publish_queue.COMMITTED_DEADLINE
        self.waits.append((step, level))
        if self.refuses:
            raise errors.Unavailable("no")


@pytest.mark.parametrize("refuses", [False, True])
def test_a_save_that_waits_is_committed_before_the_next_one_begins(refuses):
    """Else the newer one may be committed first, and go to storage in its place."""
    queue = object.__new__(_publish_queue.PublishQueue)
    queue.session, queue.waiting = WaitedFor(refuses), []
    queue.is_ours = lambda: True
    _publish_queue.settle_to(queue, 1, deadline=0)
    assert queue.session.waits == []
    queue.waiting.append(_publish_queue.Waiting(0, 7, None, None))
    _publish_queue.settle_to(queue, 1, deadline=0)
    assert queue.session.waits == [(7, "committed")]
    queue.is_ours = lambda: False  # In a fork.
    _publish_queue.settle_to(queue, 1, deadline=0)
    assert len(queue.session.waits) == 1
