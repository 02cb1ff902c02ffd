"""Goal: publishing that was cut off anywhere is completed by whoever does it again.

Method: the publishing of sets and of folders is ended by an exception at each call that changes the
file system, one after the other, and then done again from what was noted.
"""

import os
import shutil

import pytest

from libckpt import _work
from libckpt._folders import Folders
from libckpt._published import PublishedSets

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

    def prepare():
        shutil.rmtree(tmp_path / "exp", ignore_errors=True)
        exp_dir.mkdir()
        (tmp_path / "member").write_text("2")
        for name in ("model.pt", "state.json"):
            (exp_dir / name).write_text("1")
        sets = PublishedSets(exp_dir)
        (sets.work.begin("two") / "state.json").write_text("2")
        sets.work.note("two", {"step": 1})

    def publish():
        sets = PublishedSets(exp_dir)
        for name, _ in sets.work.noted():
            sets.publish(name, {"model.pt": tmp_path / "member"})

    def check(is_done=False):
        found = {(exp_dir / name).read_text() for name in ("model.pt", "state.json")}
        assert found == {"2"} if is_done else len(found) == 1

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


def test_rotation_keeps_the_newest_and_the_best(tmp_path):
    folders = Folders(tmp_path)
    for number in (1, 2, 3, 4, 10):
        folders.path(number).mkdir()
    folders.rotate(3, str(folders.path(2)))
    assert folders.numbers() == [2, 4, 10]
    folders.rotate(1, str(folders.path(2)))
    assert folders.numbers() == [2, 10]
    folders.rotate(None, None)
    assert folders.numbers() == [2, 10]


def test_where_there_are_no_hard_links_files_are_copied(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("not here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("x")
    _work.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "x"
