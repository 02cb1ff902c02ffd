"""Goal: a place where nothing can be made costs a line in the log, on each rank alike, and no
training or evaluation.

Method: a file stands where libckpt's own folder would be, as on a read-only file system, which
even root cannot write to; the doors of frameworks open the place, write to it, and end.
"""

import errno

import pytest

torch = pytest.importorskip("torch")

from libckpt import errors  # noqa: E402
from libckpt.adapters.torch._file_sets import FileSets  # noqa: E402
from libckpt.core.files import _disk, _publish_queue  # noqa: E402
from test_file_sets import die, number_of, open_sets, save  # noqa: E402, F401


@pytest.fixture
def unwritable(tmp_path, runtime):
    place = tmp_path / "out"
    place.mkdir()
    (place / ".libckpt").write_text("a file")
    return place


def test_the_place_is_named_and_the_error_is_one_of_ours(unwritable):
    with pytest.raises(errors.StorageError, match="make .*/out/.libckpt: File exists"):
        FileSets("test", unwritable)


def test_files_that_cannot_be_published_at_a_start_come_at_a_later_one(
    open_sets, tmp_path, monkeypatch, caplog  # noqa: F811
):
    sets = open_sets()
    save(sets, "a", 1)
    die(sets)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_disk, "swap_in", refuse)
        second = open_sets()
    assert "what a killed run had captured for" in caplog.text
    assert "No space left on device" in caplog.text
    assert not (tmp_path / "out" / "a").exists()
    die(second)
    open_sets()
    assert number_of(tmp_path / "out" / "a") == 1


def test_a_process_that_ends_names_what_is_not_there_yet(
    open_sets, tmp_path, monkeypatch, caplog  # noqa: F811
):
    sets = open_sets()
    save(sets, "a", 1)
    with monkeypatch.context() as patch:  # Storage is as slow as that.
        patch.setattr(_publish_queue, "settle", lambda **_: None)
        _publish_queue._leave()
    assert f"the process ends, and {tmp_path / 'out' / 'a'} is not there yet" in caplog.text
    caplog.clear()
    sets.settle()
    _publish_queue._leave()
    assert "the process ends" not in caplog.text


def test_torch_checkpointing_reads_and_writes_there_as_ever(unwritable, caplog):
    pytest.importorskip("torch_checkpointing")
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorage

    from libckpt.torch_checkpointing import StorageConfig

    storage = StorageConfig(unwritable, use_direct_io=False).create_storage()
    assert type(storage) is LocalFileSystemStorage
    assert storage.exists(unwritable / ".libckpt")
    assert "folders are written to disk as ever" in caplog.text


@pytest.fixture
def two_ranks(monkeypatch):
    """Rank 0 of two; the other one says what it is given here."""
    pytest.importorskip("megatron.core")
    said = []

    def gather(found, own):
        found[:] = [own, *said]

    for name, value in {"is_initialized": True, "get_rank": 0, "get_world_size": 2}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    return said


def folders_of_megatron(place, monkeypatch, is_disabled=False):
    from libckpt.megatron import _classic, _folders

    monkeypatch.setattr(_classic, "files_of", lambda *_: {"mp_rank_00/model.pt": {"a": 1}})
    return _folders.Folders(place, 0, is_disabled)


def test_megatron_writes_itself_where_a_rank_has_no_place(
    unwritable, two_ranks, monkeypatch, caplog
):
    from libckpt.megatron._folders import newest_in

    two_ranks[:] = [None]
    folders = folders_of_megatron(unwritable, monkeypatch)
    assert "File exists; Megatron's checkpoints are written by torch" in caplog.text
    folders.settle()
    folders.save(3, None, None, None, 0)
    assert newest_in(unwritable) == 3
    assert torch.load(unwritable / "iter_0000003" / "mp_rank_00" / "model.pt") == {"a": 1}


@pytest.mark.parametrize("who", ["own", "other"])
def test_a_folder_of_megatron_that_a_rank_cannot_write_gets_no_tracker(
    tmp_path, two_ranks, monkeypatch, caplog, who
):
    from libckpt.megatron._folders import newest_in

    two_ranks[:] = ["no space"] if who == "other" else [None]
    folders = folders_of_megatron(tmp_path, monkeypatch, is_disabled=True)
    if who == "own":
        (tmp_path / "iter_0000003").write_text("a file")
    folders.save(3, None, None, None, 0)
    assert newest_in(tmp_path) is None
    assert ("no space" if who == "other" else "iter_0000003") in caplog.text


def test_where_another_rank_has_no_place_this_one_collects_nothing(
    tmp_path, two_ranks, monkeypatch, runtime, caplog
):
    from libckpt.megatron import _folders

    class Sets:
        def __init__(self, *_, **__):
            pass

    two_ranks[:] = ["no such disk"]
    monkeypatch.setattr(_folders, "FileSets", Sets)
    folders = folders_of_megatron(tmp_path, monkeypatch)
    assert folders._sets is None
    assert "no such disk; Megatron's checkpoints are written by torch" in caplog.text
