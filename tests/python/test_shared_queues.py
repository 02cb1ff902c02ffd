"""Goal: objects of one directory share its publish queue, and none of them costs another its saves.

Method: two objects in one process, of which one closes twice, or opens while the other's saves are
on their way, or names the same job for another directory.
"""

import pytest

torch = pytest.importorskip("torch")

from libckpt import errors  # noqa: E402
from libckpt.core.files import _publish_queue, _shared_queues  # noqa: E402
from test_file_sets import number_of, open_sets, save  # noqa: E402, F401


@pytest.fixture
def folders_of(runtime):
    """Makes the TrainerFolders of a job, and their folders, without a Trainer."""
    pytest.importorskip("transformers")
    from libckpt.transformers._checkpoints import TrainerFolders
    from libckpt.transformers._folders import Folders

    yield lambda output: (TrainerFolders(None, "job-files"), Folders(output))
    for queue in list(_publish_queue._queues):
        queue.end()


def test_two_closes_of_one_object_leave_the_queue_to_the_other(open_sets, tmp_path):  # noqa: F811
    first, second = open_sets(), open_sets()
    first.close()
    first.close()
    assert first.let_go()
    assert not first.is_open() and second.is_open()
    save(second, "a", 1)
    second.close()
    assert number_of(tmp_path / "out" / "a") == 1
    assert second._queue.session.is_closed


def test_saves_that_cannot_be_settled_are_not_taken_for_a_killed_run_s(
    open_sets, tmp_path, monkeypatch  # noqa: F811
):
    first = open_sets()
    save(first, "a", 1)
    with monkeypatch.context() as patch:
        patch.setattr(_publish_queue, "settle", lambda **_: None)  # Storage is too slow.
        second = open_sets()
    assert first.waiting() == ["a"] and second._left == []
    assert [facts["name"] for _, facts in first.work.noted()] == ["a"]
    first.settle()
    assert number_of(tmp_path / "out" / "a") == 1


def test_one_job_for_two_directories_is_refused_and_not_shared(folders_of, tmp_path, caplog):
    (first, here), (second, there) = folders_of(tmp_path / "a"), folders_of(tmp_path / "b")
    assert first._open_queue(here)
    assert not second._open_queue(there)
    assert "Transformers writes its checkpoints itself" in caplog.text
    again, _ = folders_of(tmp_path / "a")
    assert again._open_queue(here) and again._queue is first._queue


def test_a_queue_that_cannot_be_opened_again_takes_no_saves(folders_of, tmp_path, monkeypatch):
    trainers, folders = folders_of(tmp_path / "a")
    assert trainers._open_queue(folders)
    trainers._queue.end()

    def refuse(*_, **__):
        raise errors.Unavailable("no daemon")

    with monkeypatch.context() as patch:
        patch.setattr(_shared_queues, "opened", refuse)
        assert not trainers._open_queue(folders)
    assert trainers._open_queue(folders)
