"""Goal: the usual PyTorch loop, with one line changed, resumes from files of one step only.

Method: the real loop with its unchanged resume code is killed at random instants around its save
block; whatever it finds when it starts again must be of one step. The files are then read by stock
torch, and the drop-in functions are tried one by one.
"""

import concurrent.futures
import io
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time
import zipfile

import pytest

torch = pytest.importorskip("torch")

import libckpt.torch  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402

KILLS = [8, pytest.param(int(os.environ.get("CKPT_PYTHON_KILLS", "100")), marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def outboxes(runtime):
    yield
    for box in list(_publish_queue._queues):
        box.close()
    libckpt.torch._queues.by_directory.clear()


def began_at(process):
    return process.wait_for_number("began at ")


@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_any_instant_the_loop_resumes_from_one_step(trainer, tmp_path, kills):
    exp_dir = tmp_path / "exp"
    exp_dir.mkdir()
    chance = random.Random(os.environ.get("CKPT_PYTHON_SEED", "1"))
    began = []
    while len(began) < kills or began[-1] == 0:  # A slow machine comes nowhere in a few of them.
        process = trainer("loop.py", str(exp_dir), "1000000")
        began.append(began_at(process))
        time.sleep(chance.random() * 0.3 * (1 + len(began) // kills))
        process.kill()
    assert began == sorted(began)
    trainer("loop.py", str(exp_dir), str(began[-1] + 5)).finish()
    assert json.loads((exp_dir / "state.json").read_text())["global_step"] >= began[-1] + 5
    assert zipfile.ZipFile(exp_dir / "optimizer.pt").testzip() is None


def test_resume_brings_what_was_captured_but_not_published(trainer, tmp_path):
    exp_dir = tmp_path / "exp"
    exp_dir.mkdir()
    process = trainer("loop.py", str(exp_dir), "1000000")
    work = exp_dir / ".libckpt" / "work"
    deadline = time.monotonic() + 60
    while not list(work.glob("[0-9]*.json")):
        assert time.monotonic() < deadline
    process.kill()
    noted = [path.stem for path in work.glob("[0-9]*.json")]
    found = libckpt.torch.resume(exp_dir)
    assert found == bool(noted)
    if found:
        step = json.loads((exp_dir / "state.json").read_text())["global_step"]
        assert step == int(max(noted).split("-")[0])
        assert int(torch.load(exp_dir / "model.pt")["step"]) == step
    assert libckpt.torch.resume(exp_dir, deadline=0) is False


def write(exp_dir, value):
    torch.save({"value": torch.full((1000,), value)}, exp_dir / "model.pt")
    (exp_dir / "state.json").write_text(json.dumps(value))


def values(exp_dir):
    return torch.load(exp_dir / "model.pt")["value"][0], json.loads(
        (exp_dir / "state.json").read_text()
    )


def test_files_that_a_block_writes_appear_together(tmp_path):
    with libckpt.torch.checkpoint(tmp_path, step=1):
        write(tmp_path, 1)
        assert "model.pt" not in os.listdir(tmp_path)
    libckpt.torch.wait()
    assert values(tmp_path) == (1, 1)
    with libckpt.torch.checkpoint(tmp_path, step=2):
        write(tmp_path, 2)
        with open(tmp_path / "state.json") as file:
            assert json.load(file) == 2  # The block sees its own files.
    libckpt.torch.wait()
    assert values(tmp_path) == (2, 2)


def test_objects_given_to_the_folder_appear_together_under_their_names(tmp_path):
    for value in (1, 2):
        with libckpt.torch.checkpoint(tmp_path, step=value) as folder:
            folder.save({"value": torch.full((1000,), value)}, "model.pt")
            folder.save([value], os.path.join("deep", "optimizer.pt"))
            (folder / "state.json").write_text(json.dumps(value))
            assert "model.pt" not in os.listdir(folder)  # It is copied when the block ends.
        libckpt.torch.wait()
        assert values(tmp_path) == (value, value)
        assert torch.load(tmp_path / "deep" / "optimizer.pt") == [value]
    assert isinstance(folder, pathlib.Path)


def test_the_folder_takes_more_objects_than_the_daemon_takes_at_a_time(tmp_path):
    with libckpt.torch.checkpoint(tmp_path, step=1) as folder:
        for number in range(15):
            folder.save([number], f"part-{number}/x.pt")
    libckpt.torch.wait()
    assert [torch.load(tmp_path / f"part-{n}" / "x.pt") for n in range(15)] == [
        [n] for n in range(15)
    ]


@pytest.mark.parametrize("name", ["../x.pt", "/x.pt", "a/../../x.pt"])
def test_the_folder_takes_names_within_it_and_only_while_the_block_lasts(tmp_path, name):
    with libckpt.torch.checkpoint(tmp_path, step=1) as folder:
        with pytest.raises(libckpt.InvalidArgument, match="give a name in the folder"):
            folder.save([1], name)
        folder.save([1], "x.pt")
    with pytest.raises(libckpt.InvalidArgument, match="before it ends"):
        folder.save([1], "x.pt")


def test_functions_that_others_replaced_in_the_middle_of_a_block_stay_theirs(tmp_path, monkeypatch):
    asked = []
    with libckpt.torch.checkpoint(tmp_path, step=1):
        ours = os.replace
        monkeypatch.setattr(os, "replace", lambda *paths: asked.append(paths) or ours(*paths))
        write(tmp_path, 1)
    (tmp_path / "a").write_text("x")
    os.replace(tmp_path / "a", tmp_path / "b")
    assert asked == [(tmp_path / "a", tmp_path / "b")]
    assert (tmp_path / "b").read_text() == "x"
    libckpt.torch.wait()
    assert values(tmp_path) == (1, 1)


def test_files_that_were_there_before_switch_with_the_others(tmp_path):
    write(tmp_path, 0)
    (tmp_path / "log.txt").write_text("mine")
    with libckpt.torch.checkpoint(tmp_path, step=1):
        write(tmp_path, 1)
    libckpt.torch.wait()
    assert values(tmp_path) == (1, 1)
    assert (tmp_path / "log.txt").read_text() == "mine"


def test_a_block_that_raises_publishes_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), libckpt.torch.checkpoint(tmp_path, step=1):
        write(tmp_path, 1)
        raise ZeroDivisionError
    libckpt.torch.wait()
    assert not os.path.exists(tmp_path / "state.json")
    write(tmp_path, 2)  # And everything is as before.
    assert values(tmp_path) == (2, 2)


def test_the_usual_ways_to_write_a_file_all_end_in_the_set(tmp_path):
    import shutil
    from torch import save as bound_early

    (tmp_path / "notes.txt").write_text("one\n")
    with libckpt.torch.checkpoint(tmp_path, step=1) as folder:
        with open(tmp_path / "aside.tmp", "w") as file:
            file.write("replaced")
        os.replace(tmp_path / "aside.tmp", tmp_path / "replaced.txt")
        with open(str(tmp_path / "notes.txt"), "a") as file:
            file.write("two\n")
        shutil.copy(__file__, tmp_path / "copied.py")
        bound_early({"a": 1}, tmp_path / "early.pt")
        os.makedirs(tmp_path / "deep" / "er", exist_ok=True)
        torch.save([torch.ones(2)], tmp_path / "deep" / "er" / "x.pt")
        (folder / "by-other-means").write_bytes(b"x")
    libckpt.torch.wait()
    current = tmp_path / ".libckpt" / "current"
    found = {str(p.relative_to(current)) for p in current.rglob("*") if p.is_file()}
    assert found == {"replaced.txt", "notes.txt", "copied.py", "early.pt", "deep/er/x.pt",
                     "by-other-means"}  # fmt: skip
    assert (tmp_path / "notes.txt").read_text() == "one\ntwo\n"
    assert torch.load(tmp_path / "early.pt") == {"a": 1}
    assert torch.equal(torch.load(tmp_path / "deep" / "er" / "x.pt")[0], torch.ones(2))


def test_a_file_written_past_the_block_is_told(tmp_path, caplog):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "before.bin").touch()
    with libckpt.torch.checkpoint(tmp_path, step=1):
        torch.save([1], tmp_path / "deep" / "x.pt")
        for name in ("past.bin", "deep/too.bin"):
            subprocess.run(["touch", tmp_path / name], check=True)
    assert " past.bin was written past the block" in caplog.text
    assert " deep/too.bin was written past the block" in caplog.text
    assert "before.bin" not in caplog.text


def test_save_is_seen_by_load_and_by_a_later_save(tmp_path):
    for value in range(3):
        libckpt.torch.save({"value": torch.full((100_000,), value)}, tmp_path / "a.pt")
        libckpt.torch.save({"value": value}, str(tmp_path / "b.pt"))
    assert libckpt.torch.load(tmp_path / "a.pt")["value"][-1] == 2
    assert torch.load(tmp_path / "b.pt") == {"value": 2}
    with open(tmp_path / "c.pt", "wb") as file:
        libckpt.torch.save([1], file)
    assert torch.load(tmp_path / "c.pt") == [1]


def test_a_module_is_saved_whole_as_torch_does_it(tmp_path):
    module = torch.nn.Linear(300, 2)
    libckpt.torch.save(module, tmp_path / "module.pt")
    with libckpt.torch.checkpoint(tmp_path / "exp", step=1) as folder:
        folder.save(module, "module.pt")
    libckpt.torch.wait()
    for path in (tmp_path / "module.pt", tmp_path / "exp" / "module.pt"):
        found = torch.load(path, weights_only=False)
        assert isinstance(found, torch.nn.Linear)
        assert torch.equal(found.weight, module.weight)


def test_saves_of_several_threads_are_all_published(tmp_path):
    def save_all(thread):
        for number in range(4):
            value = torch.full((1000,), 10.0 * thread + number)
            libckpt.torch.save(value, tmp_path / f"{thread}.pt")

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(save_all, range(4)))
    libckpt.torch.wait()
    newest = [float(torch.load(tmp_path / f"{thread}.pt")[0]) for thread in range(4)]
    assert newest == [3, 13, 23, 33]


@pytest.fixture
def private():
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_saved_file_may_be_read_by_whom_the_umask_and_the_old_file_say(tmp_path, private):
    shared = tmp_path / "shared.pt"
    shared.touch()
    shared.chmod(0o640)
    for name in ("shared.pt", "own.pt"):
        libckpt.torch.save(torch.ones(1000), tmp_path / name)
    libckpt.torch.wait()
    assert (tmp_path / "own.pt").stat().st_mode & 0o777 == 0o600
    assert shared.stat().st_mode & 0o777 == 0o640


def test_a_path_that_no_file_can_replace_is_left_to_torch(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        libckpt.torch.save([1], pipe)
    assert torch.load(io.BytesIO(read.result())) == [1]
    assert pipe.is_fifo()
    with pytest.raises((RuntimeError, OSError)):  # At once, as stock torch.
        libckpt.torch.save([1], tmp_path)
    long = tmp_path / ("n" * 252 + ".pt")
    libckpt.torch.save([1], long)
    assert torch.load(long) == [1]


def test_saves_are_published_in_the_order_of_the_calls(tmp_path):
    names = [tmp_path / f"{number}.pt" for number in range(6)]
    for name in names:
        libckpt.torch.save(torch.ones(200_000), name)
        there = [path.exists() for path in names]
        assert there == sorted(there, reverse=True)
    libckpt.torch.wait()
    assert all(path.exists() for path in names)


def test_a_saved_file_is_a_new_one_for_who_has_the_old_one_open(tmp_path):
    torch.save("old", tmp_path / "a.pt")
    with open(tmp_path / "a.pt", "rb") as old:
        libckpt.torch.save("new", tmp_path / "a.pt")
        assert libckpt.torch.load(tmp_path / "a.pt") == "new"
        assert torch.load(old) == "old"


def test_without_a_daemon_stock_torch_saves(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", "/nonexistent/ckptd")
    monkeypatch.setenv("LIBCKPT_OPEN_DEADLINE", "1s")
    libckpt.torch.save([1, 2], tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt") == [1, 2]
    with libckpt.torch.checkpoint(tmp_path / "exp", step=1):
        write(tmp_path / "exp", 7)
    assert values(tmp_path / "exp") == (7, 7)
    assert "stock torch saves instead" in caplog.text


def test_disabled_it_is_stock_torch(tmp_path, runtime, monkeypatch, caplog):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    libckpt.torch.save([1, 2], tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt") == [1, 2]
    with libckpt.torch.checkpoint(tmp_path / "exp", step=1):
        write(tmp_path / "exp", 7)
    assert values(tmp_path / "exp") == (7, 7)
    assert not libckpt.torch.resume(tmp_path / "exp")
    libckpt.torch.wait()
    assert libckpt.torch.load(tmp_path / "a.pt") == [1, 2]
    assert caplog.text == ""
    assert not runtime.exists()


def daemon_of(runtime):
    """The daemon that has the runtime directory."""
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:  # It has ended.
            continue
        if command[0].endswith(b"/ckptd") and str(runtime).encode() in command:
            return int(directory.name)
    return pytest.fail("no daemon runs")


def test_what_is_lost_with_the_daemon_is_told_by_wait_and_load(tmp_path, runtime, caplog):
    exp_dir, single = tmp_path / "exp", tmp_path / "single.pt"

    def save(value):
        libckpt.torch.save(torch.full((100_000,), value), single)
        with libckpt.torch.checkpoint(exp_dir, step=value):
            write(exp_dir, value)

    save(1)
    libckpt.torch.wait()
    daemon = daemon_of(runtime)
    os.kill(daemon, signal.SIGSTOP)  # It brings nothing to storage any more.
    save(2)
    os.kill(daemon, signal.SIGKILL)
    with pytest.raises(libckpt.StorageError) as raised:
        libckpt.torch.wait()
    lost = [single, exp_dir / "model.pt", exp_dir / "state.json"]
    assert all(str(path) in str(raised.value) for path in lost)
    assert "is not published" in caplog.text
    libckpt.torch.wait()  # It is known.
    for path in (single, exp_dir / "model.pt"):
        with pytest.raises(libckpt.StorageError, match=re.escape(str(path))):
            libckpt.torch.load(path)
    assert values(exp_dir) == (1, 1)
    save(3)
    assert int(libckpt.torch.load(single)[-1]) == 3
    libckpt.torch.load(exp_dir / "model.pt")
    assert values(exp_dir) == (3, 3)


def inodes_below(directory):
    """The space taken there: by inode, the bytes."""
    found = [path.stat() for path in directory.rglob("*") if path.is_file()]
    return {status.st_ino: status.st_size for status in found}


def jobs_with_memory(programs):
    """Its exit status says whether they are well, which is not asked here."""
    command = [programs / "ckpt", "status", "--json"]
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "jobs" in status.stdout, status.stdout + status.stderr
    return [job["job"] for job in json.loads(status.stdout)["jobs"] if job["slots"]]


def test_a_name_of_its_own_for_each_save_costs_the_memory_and_the_disk_of_one(
    tmp_path, programs, caplog
):
    folder = tmp_path / "epochs"
    folder.mkdir()
    content = torch.zeros(300_000)
    for epoch in range(8):
        content += 1
        libckpt.torch.save(content, folder / f"epoch-{epoch}.pt")
    libckpt.torch.wait()
    assert [int(torch.load(folder / f"epoch-{epoch}.pt")[-1]) for epoch in range(8)] == [
        *range(1, 9)
    ]
    assert len(jobs_with_memory(programs)) == 1
    assert "stock torch saves instead" not in caplog.text
    for file in folder.glob("*.pt"):
        file.unlink()
    assert sum(inodes_below(folder).values()) < content.nbytes * 1.1
    for queue in list(_publish_queue._queues):
        queue.close()
    assert sum(inodes_below(folder).values()) < content.nbytes / 10


def test_files_that_were_published_are_not_missed_by_the_daemon(tmp_path, runtime):
    """It warned of each, stored it again, and slow storage was given up after a minute."""
    path = tmp_path / "model.pt"
    for value in range(4):
        libckpt.torch.save(torch.full((1000,), value), path)
        libckpt.torch.wait()
        assert int(torch.load(path)[0]) == value
    (queue,) = libckpt.torch._queues.by_directory.values()
    assert not queue.session.counts()["degraded"]
    assert "not there any more" not in (runtime / "ckptd.log").read_text()
    assert len(list((tmp_path / ".libckpt" / "files").glob("step-*"))) == 1
    queue.close()
    assert not list((tmp_path / ".libckpt" / "files").glob("step-*"))
    libckpt.torch._queues.by_directory.clear()
    libckpt.torch.save(torch.full((1000,), 4), path)  # As a later process would.
    libckpt.torch.wait()
    assert int(torch.load(path)[0]) == 4


def test_a_folder_of_its_own_for_each_save_leaves_no_jobs_behind(tmp_path, programs):
    for step in range(5):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        libckpt.torch.save(torch.full((1000,), step), folder / "model.pt")
        with libckpt.torch.checkpoint(tmp_path / f"set-{step}", step=step):
            write(tmp_path / f"set-{step}", step)
    libckpt.torch.wait()
    for step in range(5):
        assert int(torch.load(tmp_path / f"step-{step}" / "model.pt")[0]) == step
        assert values(tmp_path / f"set-{step}") == (step, step)
    assert len(jobs_with_memory(programs)) <= 2


def test_a_process_that_ended_in_order_leaves_no_memory_taken(trainer, tmp_path, programs):
    (tmp_path / "exp").mkdir()
    trainer("loop.py", str(tmp_path / "exp"), "3").finish()
    assert jobs_with_memory(programs) == []
