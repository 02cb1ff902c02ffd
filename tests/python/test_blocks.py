"""Goal: no file of a loop is lost by its save blocks, whatever names it writes, deletes and moves.

Method: blocks do what loops do (a best model now and then, numbered files, logs, rotation, links,
temporary files, a directory that is reached by a link), and after each set has been published every
name must have what plain functions would have left there.
"""

import json
import os
import shutil
import tempfile

import pytest

torch = pytest.importorskip("torch")

import libckpt.torch  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402


@pytest.fixture(autouse=True)
def outboxes(runtime):
    yield
    for box in list(_publish_queue._queues):
        box.close()
    libckpt.torch._queues.by_directory.clear()


@pytest.fixture
def exp_dir(tmp_path):
    path = tmp_path / "exp"
    path.mkdir()
    return path


@pytest.fixture
def block(exp_dir):
    """Runs a function within a block, and waits until it is published."""
    steps = iter(range(1, 1000))

    def run(function, directory=exp_dir):
        with libckpt.torch.checkpoint(directory, step=next(steps)):
            function()
        libckpt.torch.wait()

    return run


def value(path):
    return int(torch.load(path)["value"][0])


def save(path, number):
    torch.save({"value": torch.full((1000,), number)}, path)


def test_files_that_a_block_did_not_write_stay(exp_dir, block):
    for step in range(1, 6):

        def write(step=step):
            save(exp_dir / f"model-{step}.pt", step)
            save(exp_dir / "model.pt", step)
            if step == 2:
                save(exp_dir / "best.pt", step)

        block(write)
    assert [value(exp_dir / f"model-{step}.pt") for step in range(1, 6)] == [1, 2, 3, 4, 5]
    assert value(exp_dir / "best.pt") == 2
    assert len(list((exp_dir / ".libckpt" / "sets").iterdir())) == 2


def test_sets_that_are_overtaken_on_the_way_to_storage_lose_no_name(exp_dir):
    for step in range(8):
        with libckpt.torch.checkpoint(exp_dir, step=step):
            save(exp_dir / f"model-{step}.pt", step)
    libckpt.torch.wait()
    assert [value(exp_dir / f"model-{step}.pt") for step in range(8)] == list(range(8))


def test_a_directory_may_be_reached_by_links_and_by_its_own_path(exp_dir, tmp_path, block, caplog):
    (tmp_path / "link").symlink_to("exp")
    (tmp_path / "parent").symlink_to(".")
    ways = [tmp_path / "link", exp_dir, tmp_path / "parent" / "exp", tmp_path / "link"]
    for step, way in enumerate(ways):

        def write(step=step, way=way):
            save(way / "model.pt", step)
            (way / "state.json").write_text(json.dumps(step))

        block(write, way)
        before = (exp_dir / ".libckpt" / "current" / "state.json").stat().st_ino
        assert (value(exp_dir / "model.pt"), json.loads((way / "state.json").read_text())) == (
            step,
            step,
        )
        assert (exp_dir / "model.pt").is_symlink()
        assert before == (exp_dir / "state.json").stat().st_ino
    assert "past the block" not in caplog.text


def test_a_relative_directory_below_a_link(tmp_path, monkeypatch, exp_dir, block):
    (tmp_path / "link").symlink_to(".")
    monkeypatch.chdir(tmp_path / "link")
    for step in (1, 2):
        block(lambda step=step: save(f"exp/../exp/model-{step}.pt", step), "exp")
    assert [value(exp_dir / f"model-{step}.pt") for step in (1, 2)] == [1, 2]
    assert (exp_dir / "model-1.pt").is_symlink()


def test_a_block_that_wrote_nothing_leaves_what_is_published(exp_dir, block, caplog):
    block(lambda: save(exp_dir / "model.pt", 1))
    for _ in range(3):
        block(lambda: None)
    assert value(exp_dir / "model.pt") == 1
    assert "wrote nothing" in caplog.text


def test_a_file_behind_a_link_within_the_directory_is_named(exp_dir, tmp_path, block, caplog):
    (tmp_path / "elsewhere").mkdir()
    (exp_dir / "sub").symlink_to(tmp_path / "elsewhere")
    block(lambda: save(exp_dir / "sub" / "model.pt", 1))
    assert value(tmp_path / "elsewhere" / "model.pt") == 1
    assert "leads out of it" in caplog.text


def test_a_file_that_a_block_deletes_goes_with_its_set_and_not_before(exp_dir, block):
    block(lambda: [save(exp_dir / f"model-{step}.pt", step) for step in (1, 2)])
    (exp_dir / "old.txt").write_text("of before")

    def rotate():
        save(exp_dir / "model-3.pt", 3)
        os.remove(exp_dir / "model-1.pt")
        (exp_dir / "old.txt").unlink()
        assert not (exp_dir / "model-1.pt").exists()
        with pytest.raises(FileNotFoundError):
            os.unlink(exp_dir / "old.txt")
        assert {"model-1.pt", "old.txt"} <= set(os.listdir(exp_dir))

    with pytest.raises(ZeroDivisionError):
        block(lambda: (rotate(), 1 / 0))
    assert value(exp_dir / "model-1.pt") == 1
    assert (exp_dir / "old.txt").read_text() == "of before"
    block(rotate)
    assert sorted(os.listdir(exp_dir)) == [".libckpt", "model-2.pt", "model-3.pt"]
    block(lambda: save(exp_dir / "model-4.pt", 4))
    assert sorted(os.listdir(exp_dir)) == [".libckpt", "model-2.pt", "model-3.pt", "model-4.pt"]


def test_a_file_that_is_deleted_between_blocks_does_not_come_back(exp_dir, block):
    block(lambda: [save(exp_dir / f"model-{step}.pt", step) for step in (1, 2)])
    os.unlink(exp_dir / "model-1.pt")
    block(lambda: save(exp_dir / "model-3.pt", 3))
    assert sorted(os.listdir(exp_dir)) == [".libckpt", "model-2.pt", "model-3.pt"]
    current = exp_dir / ".libckpt" / "current"
    assert sorted(os.listdir(current)) == ["model-2.pt", "model-3.pt"]


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_folder_that_is_removed_and_made_again(exp_dir, block, monkeypatch, is_inside):
    (exp_dir / "ckpt").mkdir()
    for name in ("state.json", "old.json"):
        (exp_dir / "ckpt" / name).write_text("old")
    if is_inside:
        monkeypatch.chdir(exp_dir)

    def replace():
        (exp_dir / "state.json").write_text("new")
        shutil.rmtree(exp_dir / "ckpt")
        assert not (exp_dir / "ckpt").exists()
        os.makedirs(exp_dir / "ckpt")
        (exp_dir / "ckpt" / "state.json").write_text("new")

    block(replace)
    assert (exp_dir / "state.json").read_text() == "new"
    assert os.listdir(exp_dir / "ckpt") == ["state.json"]
    assert (exp_dir / "ckpt" / "state.json").read_text() == "new"
    block(lambda: shutil.rmtree(exp_dir / "ckpt"))
    assert sorted(os.listdir(exp_dir)) == [".libckpt", "state.json"]


def test_a_copy_has_what_the_block_saved_and_not_what_was_there_before(exp_dir, block):
    for step in (1, 2):

        def write(step=step):
            save(exp_dir / "model.pt", step)
            assert os.path.exists(exp_dir / "model.pt")
            shutil.copy(exp_dir / "model.pt", exp_dir / "best.pt")
            assert value(exp_dir / "model.pt") == step

        block(write)
        assert (value(exp_dir / "model.pt"), value(exp_dir / "best.pt")) == (step, step)


def test_a_copy_of_what_an_earlier_block_saved_is_of_that_block(exp_dir):
    for step in (1, 2):
        with libckpt.torch.checkpoint(exp_dir, step=step):
            save(exp_dir / "model.pt", step)
    with libckpt.torch.checkpoint(exp_dir, step=3):
        shutil.copy(exp_dir / "model.pt", exp_dir / "best.pt")
    libckpt.torch.wait()
    assert value(exp_dir / "best.pt") == 2


def test_temporary_files_become_what_they_are_moved_to(exp_dir, tmp_path, block):
    def write():
        save(exp_dir / "model.tmp", 1)
        os.replace(exp_dir / "model.tmp", exp_dir / "model.pt")
        with tempfile.NamedTemporaryFile("w", dir=exp_dir, delete=False) as file:
            file.write("state")
        os.rename(file.name, exp_dir / "state.json")
        (tmp_path / "far.tmp").write_text("far")
        os.replace(tmp_path / "far.tmp", exp_dir / "far.txt")

    block(write)
    assert sorted(os.listdir(exp_dir)) == [".libckpt", "far.txt", "model.pt", "state.json"]
    assert value(exp_dir / "model.pt") == 1
    assert (exp_dir / "state.json").read_text() == "state"
    assert all((exp_dir / name).is_symlink() for name in ("model.pt", "state.json", "far.txt"))


def test_the_old_file_is_moved_away_and_the_new_one_takes_its_name(exp_dir, block):
    save(exp_dir / "model.pt", 0)
    for step in (1, 2, 3):

        def write(step=step):
            os.replace(exp_dir / "model.pt", exp_dir / "previous.pt")
            assert not (exp_dir / "model.pt").exists()
            save(exp_dir / "model.pt", step)

        block(write)
        assert (value(exp_dir / "model.pt"), value(exp_dir / "previous.pt")) == (step, step - 1)


def test_a_folder_is_moved_with_all_that_the_block_put_there(exp_dir, block):
    def write():
        os.makedirs(exp_dir / "tmp-1" / "deep")
        save(exp_dir / "tmp-1" / "model.pt", 1)
        (exp_dir / "tmp-1" / "deep" / "state.json").write_text("1")
        os.rename(exp_dir / "tmp-1", exp_dir / "step-1")

    block(write)
    assert sorted(os.listdir(exp_dir)) == [".libckpt", "step-1"]
    assert value(exp_dir / "step-1" / "model.pt") == 1
    assert (exp_dir / "step-1" / "deep" / "state.json").read_text() == "1"
    block(lambda: os.rename(exp_dir / "step-1", exp_dir / "kept"))
    assert sorted(os.listdir(exp_dir)) == [".libckpt", "kept"]
    assert value(exp_dir / "kept" / "model.pt") == 1


def test_links_that_a_block_makes_lead_where_they_are_to_lead(exp_dir, block):
    for step in (1, 2):

        def write(step=step):
            save(exp_dir / f"model-{step}.pt", step)
            if (exp_dir / "latest.pt").is_symlink():
                os.unlink(exp_dir / "latest.pt")
            os.symlink(f"model-{step}.pt", exp_dir / "latest.pt")
            with pytest.raises(FileExistsError):
                os.symlink("x", exp_dir / "latest.pt")

        block(write)
        assert value(exp_dir / "latest.pt") == step


def test_a_log_keeps_every_line_in_its_turn(exp_dir, block):
    log = exp_dir / "train.txt"
    log.write_text("before\n")

    def append(line):
        with open(log, "a") as file:
            file.write(f"{line}\n")

    for step in (1, 2, 4):
        with libckpt.torch.checkpoint(exp_dir, step=step):
            append(f"in {step}")
        append(f"after {step}")
    block(lambda: save(exp_dir / "model.pt", 5))
    lines = ["before", "in 1", "after 1", "in 2", "after 2", "in 4", "after 4"]
    assert log.read_text().split("\n")[:-1] == lines


def test_an_append_never_changes_a_published_set(exp_dir, block):
    def write(text, mode):
        with open(exp_dir / "train.txt", mode) as file:
            file.write(text)

    block(lambda: write("one", "w"))
    block(lambda: save(exp_dir / "model.pt", 2))  # Both sets have the same file.
    with libckpt.torch.checkpoint(exp_dir, step=100):
        os.rename(exp_dir / "train.txt", exp_dir / "moved.txt")
        with open(exp_dir / "moved.txt", "a") as file:
            file.write(" two")
        found = [path / "train.txt" for path in (exp_dir / ".libckpt" / "sets").iterdir()]
        assert [path.read_text() for path in found] == ["one", "one"]
    libckpt.torch.wait()
    assert (exp_dir / "moved.txt").read_text() == "one two"
    assert not (exp_dir / "train.txt").exists()


def test_writes_by_a_link_from_elsewhere_go_into_the_block(exp_dir, tmp_path, block):
    block(lambda: (exp_dir / "state.json").write_text("1"))
    (tmp_path / "latest.json").symlink_to(exp_dir / "state.json")
    with pytest.raises(ZeroDivisionError):
        block(lambda: ((tmp_path / "latest.json").write_text("2"), 1 / 0))
    assert (exp_dir / "state.json").read_text() == "1"


def test_saves_that_grow_go_by_the_daemon_all_the_same(exp_dir, tmp_path, caplog):
    for step in range(1, 5):
        large = torch.full((1000 * 4**step,), step)
        with libckpt.torch.checkpoint(exp_dir, step=step):
            torch.save({"value": large}, exp_dir / "model.pt")
            if step % 2:
                torch.save({"value": large}, exp_dir / "optimizer.pt")
        libckpt.torch.save({"value": large}, tmp_path / "single.pt")
    libckpt.torch.wait()
    assert [value(exp_dir / "model.pt"), value(tmp_path / "single.pt")] == [4, 4]
    assert "stock torch saves instead" not in caplog.text
    assert "must grow" not in caplog.text


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_queue_goes_on_where_another_process_had_steps(tmp_path, end):
    for expected in (1, 2, 3):
        box = _publish_queue.PublishQueue("queue", tmp_path / "dir")
        assert box.capture({"x": torch.full((4,), float(expected))}) == expected
        box.session.wait(expected, "durable")
        if end == "killed":
            box.session.abandon()
        box.close()


def test_a_block_in_a_bucket_is_refused(tmp_path, monkeypatch):
    """Else its files would lie in a folder "s3:" of the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(libckpt.Unsupported, match="s3://bucket/run: files of a block lie on a "):
        with libckpt.torch.checkpoint("s3://bucket/run", step=1):
            pass
    assert list(tmp_path.iterdir()) == []
