"""Goal: whatever becomes of the trainer's process, its newest state comes back, and it ends clean.

Method: real trainers in processes of their own, killed at random steps, forked, ended in every way,
and watched over a thousand saves.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

STEPS = 60


def results(output):
    return [line for line in output.splitlines() if line.startswith(("losses", "weights"))]


def kill_after(process, step):
    process.wait_until_said(f"made {step}\n")
    process.kill()


def began_at(output):
    return int(output.partition("began at ")[2].split("\n")[0])


@pytest.mark.parametrize("memory", [True, False], ids=["memory", "storage"])
def test_a_killed_trainer_ends_with_the_weights_of_one_that_was_not(
    trainer, runtime, tmp_path, programs, memory
):
    expected = results(trainer("plain.py", "whole", str(STEPS)).finish())
    assert len(expected) == 2
    directory = tmp_path / "dir"
    chance = random.Random(os.environ.get("CKPT_PYTHON_SEED", "1"))
    for about in (10, 25, 40):
        killed = trainer("plain.py", "job", str(STEPS), str(directory))
        kill_after(killed, about + chance.randrange(10))
        if not memory:
            subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60)
    output = trainer("plain.py", "job", str(STEPS), str(directory)).finish()
    assert results(output) == expected
    assert began_at(output) >= 10


@pytest.mark.parametrize(("end", "code"), [("return", 0), ("exit", 0), ("raise", 1)])
def test_the_flush_ends_in_the_daemon_however_the_trainer_ends(
    trainer, tmp_path, programs, end, code
):
    directory = tmp_path / "dir"
    process = trainer("plain.py", "job", "9", str(directory), end)
    assert process.wait() == code, process.log.read_text()[-4000:]
    output = process.log.read_text()
    assert "Segmentation" not in output
    assert ("Traceback" in output) == (end == "raise")
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60)  # Ends what was begun.
    newest = int(output.split("saved ")[-1].split()[0])  # The last ones may have been skipped.
    assert newest >= 1
    assert (directory / f"step-{newest:09}" / "manifest.json").exists()


def test_a_forked_worker_leaves_the_session_alone(job):
    session = job(raise_on_error=False)
    session.save(1, {"a": torch.ones(3)}).captured.result(30)
    child = os.fork()
    if child == 0:
        ticket = session.save(2, {"a": torch.ones(3)})
        is_left_alone = ticket.outcome == "skipped_unavailable" and session.status()["job"] == "job"
        session.close()
        os._exit(0 if is_left_alone else 1)
    assert os.waitpid(child, 0)[1] == 0
    step, ends = 3, time.monotonic() + 60
    while not session.save(step, {"a": torch.ones(3)}):  # Until a Slot is free.
        assert time.monotonic() < ends
        step += 1
    session.wait(step, "captured", 30)


def test_workers_of_a_data_loader_may_fork(job):
    session = job()
    data = torch.utils.data.TensorDataset(torch.arange(32.0))
    seen = 0
    for step, _ in enumerate(torch.utils.data.DataLoader(data, 4, num_workers=2), 1):
        seen += 1
        session.save(step, {"a": torch.ones(3)}).committed.result(30)
    assert seen == 8
    assert session.latest == 8


def test_other_threads_run_while_one_waits(held_up):
    ended, errors = threading.Event(), []

    def wait():
        try:
            held_up.wait(2, "committed", 1.0)
        except libckpt.CheckpointError as error:
            errors.append(type(error))
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    turns = 0
    while not ended.is_set():
        turns += 1
        time.sleep(0.001)
    waiter.join()
    assert errors == [libckpt.Unavailable]
    assert turns > 10  # With the GIL held it would be one.


def own_kib(pid):
    """Without Slots, which are shared memory."""
    text = (pathlib.Path("/proc") / str(pid) / "status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0])


class Use:
    """A process's counts of things that may leak."""

    def __init__(self, pid):
        folder = pathlib.Path("/proc") / str(pid)
        self.descriptors = len(os.listdir(folder / "fd"))
        self.threads = len(os.listdir(folder / "task"))
        self.own_kib = own_kib(pid)
        self.mappings = len((folder / "maps").read_text().splitlines())

    def check_flat(self, before, saves):
        assert self.descriptors == before.descriptors
        assert self.threads == before.threads
        assert self.mappings - before.mappings < 20
        assert self.own_kib - before.own_kib <= saves  # P17: at most 1 KiB for each save.


@pytest.mark.slow
@pytest.mark.parametrize("is_replaced", [False, True], ids=["in place", "made anew each time"])
def test_p17_a_thousand_saves_leave_trainer_and_daemon_as_they_were(
    job, runtime, tmp_path, is_replaced
):
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(3, 256)).sum().backward()
    optimizer.step()
    session = job(dir=tmp_path / "dir", save_storage_interval=50, keep=2).guard(optimizer)
    items = {"model": model, "optimizer": optimizer, "rng": libckpt.RNG(), "progress": {}}
    daemon = json.loads((runtime / "ckptd.json").read_text())["pid"]

    def save(step):
        if is_replaced:
            model.weight.data = model.weight.data.clone()
        items["progress"]["step"] = step
        assert session.save(step, items)
        optimizer.step()
        session.wait(step, "committed", 30)

    def uses_after(steps):
        """The counts of trainer and daemon. Memory is the least at any of the last saves: an
        allocator keeps some MiB of free memory, now more and now less."""
        pids = (os.getpid(), daemon)
        seen = []
        for step in steps:
            save(step)
            seen.append([own_kib(pid) for pid in pids])
        session.wait(steps[-1], "durable", 30)
        uses = [Use(pid) for pid in pids]
        for use, kib in zip(uses, zip(*seen[-200:], strict=True), strict=True):
            use.own_kib = min(kib)
        return uses

    warm, saves = 300, 1000
    before = uses_after(range(1, warm + 1))  # Every pool and every log has what it will have.
    after = uses_after(range(warm + 1, warm + saves + 1))
    for then, now in zip(before, after, strict=True):
        now.check_flat(then, saves)
    assert session.status()["failed"] == 0
    assert session.status()["saves_started"] == warm + saves


SPAWNED = """
import sys
import torch
import libckpt


def run(rank):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2
    )
    session = libckpt.init("spawned")
    print(f"rank {session.rank} of {session.world_size}\\n", end="", flush=True)
    torch.distributed.barrier()
    session.abandon()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, nprocs=2)
"""


def test_the_process_group_says_which_rank_this_is_where_no_environment_does(runtime, tmp_path):
    (tmp_path / "spawned.py").write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, tmp_path / "spawned.py", tmp_path / "rendezvous"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
