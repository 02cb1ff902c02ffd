"""Goal: a place where nothing can be made costs a line in the log, on each rank alike, and no
training or evaluation.

Method: a file stands where libckpt's own folder would be, as on a read-only file system, which
even root cannot write to; the doors of frameworks open the place, write to it, and end.
"""

import errno
import types

import pytest

torch = pytest.importorskip("torch")

from libckpt import errors  # noqa: E402
from libckpt.adapters.torch import _file_set  # noqa: E402
from libckpt.adapters.torch._file_sets import FileSets  # noqa: E402
from libckpt.core import _open_sessions  # noqa: E402
from libckpt.core.files import _disk, _publish_queue, _storage  # noqa: E402
from small_models import Squares  # noqa: E402
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


@pytest.fixture
def turned(open_sets):  # noqa: F811
    """Sets that are open in a place where nothing more can be made."""
    sets = open_sets()
    save(sets, "a", 1)
    sets.settle()
    sets.work.directory.rmdir()
    sets.work.directory.write_text("a file")
    return sets


def test_a_place_that_turns_unwritable_costs_a_set_and_a_line(turned, tmp_path, caplog):
    fileset = turned.begin("b", may_be_aside=True)
    aside = fileset.folder
    fileset.path("config.json").write_text("2")
    fileset.commit({"latest": "b"})
    assert not aside.parent.exists()
    assert "/out/b does not come: make " in caplog.text
    assert "/.libckpt/work/200/rank-0: Not a directory; training goes on" in caplog.text
    turned.work.directory.unlink()
    save(turned, "c", 3)
    turned.settle()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".libckpt", "a", "c", "latest",
    ]  # fmt: skip


def test_without_a_place_aside_a_set_begins_with_an_error_of_ours(turned):
    with pytest.raises(errors.StorageError, match="make .*/rank-0: Not a directory"):
        turned.begin("b")


def test_a_part_whose_mark_could_not_be_made_is_missed(open_sets):  # noqa: F811
    sets = open_sets()
    folder = sets.work.begin("9")
    missed = _file_set.TorchMember("missed", as_it_is=True)
    step = sets._queue.next_step()
    sets._queue.capture_as(step, {"set": "b", _file_set.MISSED: missed})
    sets._queue.session.wait(step, "durable", 60)
    path, _ = _storage.find_step(sets._queue.directory, step)
    assert _file_set.is_missed(folder, path)


@pytest.fixture
def place(tmp_path, runtime):
    """A directory of a framework; what is open for it is closed."""
    yield tmp_path / "out"
    for queue in list(_publish_queue._queues):
        queue.end()
    for session in list(_open_sessions.sessions):
        session.abandon()


class Work:
    """Turns the work folder of a directory into a file that nothing can be made in."""

    def __init__(self, directory):
        self._work = directory / ".libckpt" / "work"

    def spoil(self):
        _publish_queue.settle(wait=True)
        self._work.rmdir()
        self._work.write_text("a file")


def test_a_trainer_goes_on_where_its_place_turns_unwritable(place, caplog):
    transformers = pytest.importorskip("transformers")
    import libckpt.transformers

    work = Work(place)

    class Spoil(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 1:
                work.spoil()

    settings = transformers.TrainingArguments(
        str(place), report_to=[], use_cpu=True, max_steps=3, save_steps=1,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        Squares(), settings, train_dataset=[{"x": torch.ones(1)}] * 64, callbacks=[Spoil()]
    )
    libckpt.transformers.TrainerWrapper(trainer).train()
    assert trainer.state.global_step == 3
    assert [path.name for path in place.glob("check*")] == ["checkpoint-1"]
    for number in (2, 3):
        assert f"out/checkpoint-{number} does not come: " in caplog.text


def test_accelerate_goes_on_where_its_place_turns_unwritable(place, caplog, monkeypatch):
    accelerate = pytest.importorskip("accelerate")
    import libckpt.accelerate

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    libckpt.accelerate.attach(accelerator, job="job")
    accelerator.save_state(str(place / "a"))
    Work(place).spoil()
    accelerator.save_state(str(place / "b"))
    assert f"{place / 'b'} does not come: make " in caplog.text
    assert (place / "a").is_dir() and not (place / "b").exists()


def test_deepspeeds_scripts_are_no_reason_to_end(tmp_path, caplog):
    pytest.importorskip("deepspeed")
    from libckpt.deepspeed import _folders

    def copy(_):
        raise OSError(errno.EROFS, "Read-only file system")

    engine = types.SimpleNamespace(checkpoint_engine=None, _copy_recovery_script=copy)
    with _folders.collecting(engine, None, "folder"):
        engine._copy_recovery_script(tmp_path)
    assert f"DeepSpeed's scripts are not copied to {tmp_path}" in caplog.text


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
