"""Goal: two processes that save into one folder at a time, as two ranks or a restart beside the old
process do, neither mix their files nor wait for each other.

Method: one process with the folder takes orders, a block each; the test is the other one.
"""

import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import libckpt.torch  # noqa: E402
from libckpt import errors  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402

PROGRAM = """
import pathlib, sys, torch, libckpt.torch
folder = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    word, step = line.split()
    content = {"value": torch.full((1000,), int(step))}
    if word == "save":
        libckpt.torch.save(content, folder / "own.pt")
    else:
        with libckpt.torch.checkpoint(folder, step=int(step)) as block:
            (block / "state.txt").write_text(step)
            if word == "half":
                print("half", flush=True)
                sys.stdin.readline()
            block.save(content, "model.pt")
    libckpt.torch.wait()
    print("done", flush=True)
"""


class Saver:
    """The other process."""

    def __init__(self, folder, log):
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, text=True,
        )  # fmt: skip

    def tell(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self):
        return self._process.stdout.readline().strip()

    def run(self, line):
        self.tell(line)
        assert self.hear() == "done"

    def kill(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "exp").mkdir()
    return tmp_path / "exp"


@pytest.fixture(autouse=True)
def queues(runtime):
    yield
    for queue in list(_publish_queue._queues):
        queue.close()
    libckpt.torch._queues.by_directory.clear()


@pytest.fixture
def other(queues, folder, tmp_path):
    with (tmp_path / "other.log").open("w") as log:
        found = Saver(folder, log)
        yield found
        found.kill()


def value(path):
    return int(torch.load(path)["value"][0])


def save_block(folder, step, name="note.txt"):
    with libckpt.torch.checkpoint(folder, step=step) as block:
        (block / name).write_text(str(step))
    libckpt.torch.wait()


def queues_for(folder):
    """Those of this process."""
    return [queue for queue in _publish_queue._queues
            if queue.is_ours() and queue.directory.is_relative_to(folder)]  # fmt: skip


def test_a_block_beside_another_process_takes_nothing_from_its_block(folder, other, caplog):
    other.run("block 1")
    other.tell("half 2")
    assert other.hear() == "half"
    save_block(folder, 101)
    assert not queues_for(folder)
    assert "saves there, too" in caplog.text
    other.tell("go on")
    assert other.hear() == "done"
    assert (folder / "state.txt").read_text() == "2"
    assert value(folder / "model.pt") == 2
    assert (folder / "note.txt").read_text() == "101"


def test_the_folder_is_captured_for_when_the_other_process_is_gone(folder, other):
    other.run("block 1")
    save_block(folder, 2)
    assert not queues_for(folder)
    other.kill()
    save_block(folder, 3)
    assert len(queues_for(folder)) == 1
    assert (folder / "note.txt").read_text() == "3"
    assert (folder / "state.txt").read_text() == "1"


def test_single_files_of_two_processes_in_one_folder(folder, other):
    other.run("save 1")
    libckpt.torch.save({"value": torch.full((1000,), 7)}, folder / "mine.pt")
    assert not queues_for(folder)
    assert value(folder / "mine.pt") == 7  # At once: stock torch wrote it.
    other.run("save 2")
    assert value(folder / "own.pt") == 2


def test_a_block_whose_files_were_removed_is_not_published_in_part(folder):
    save_block(folder, 1)
    with (
        pytest.raises(errors.StorageError, match="was removed while it ran"),
        libckpt.torch.checkpoint(folder, step=2) as block,
    ):
        (block / "state.txt").write_text("2")
        shutil.rmtree(block.parent)
        block.save({"value": torch.full((1000,), 2)}, "model.pt")
    libckpt.torch.wait()
    assert (folder / "note.txt").read_text() == "1"
    assert not (folder / "model.pt").exists()


def test_a_queue_whose_job_was_taken_over_says_so_at_once(folder, monkeypatch):
    queue = _publish_queue.PublishQueue("shared", folder / "job", rank=0, world_size=1)
    words = ["-c", "import libckpt, sys; libckpt.init('shared', sys.argv[1]).abandon()"]
    subprocess.run([sys.executable, *words, folder / "job"], check=True, timeout=120)
    prepare, attempts = queue.session.prepare, []

    def counted(items):
        attempts.append(items)
        assert len(attempts) < 10
        prepare(items)

    monkeypatch.setattr(queue.session, "prepare", counted)
    with pytest.raises(errors.Unavailable, match=_publish_queue.TAKEN_OVER):
        queue.capture({"state": {"step": 1}})
    queue.close()
