"""A file system whose files can share bytes: a real XFS on a loop device.

With `skip_unchanged` a save writes what has changed, and shares the rest with the save before.
Every step is whole all the same: after retention has removed the one that it shared with, and after
the power has failed.
"""

import functools
import json
import os
import random
import shutil
import subprocess
import time

import crash_power
from crash_labels import Promises
from crash_lab import Failure, Lab, wait_until

FROZEN_MIB = 20
CHUNK = 4 << 20
FROZEN = ("--frozen-mib", FROZEN_MIB, "--skip-unchanged")
# Chunks that hold frozen bytes alone; those at both ends have others, too.
SHARED_MIN = FROZEN_MIB * (1 << 20) - 2 * CHUNK
# The front, the end, and the journal.
WRITTEN_MAX = 3 * CHUNK
LOSSES = 4


class Disk(crash_power.Disk):
    kind = "xfs"
    make = ("mkfs.xfs", "-q", "-f", "-m", "reflink=1")
    image_bytes = 320 << 20  # The least that XFS takes is 300 MiB.


def prepare():
    if shutil.which("mkfs.xfs") is None:
        return "mkfs.xfs is missing (the package xfsprogs)"
    why = crash_power.prepare()
    if why:
        return why
    with open("/proc/filesystems", encoding="utf-8") as known:
        if "xfs" in known.read().split():
            return ""
    done = subprocess.run(["modprobe", "xfs"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "the kernel has no XFS"


def free_bytes(disk):
    os.sync()
    stat = os.statvfs(disk.mounted)
    return stat.f_bfree * stat.f_frsize


def flushed(lab):
    done = subprocess.run([lab.tools.command_line, "status", "--json"], env=lab.environment(),
                          capture_output=True, text=True, check=False)
    if not done.stdout:  # A job without its trainer is a warning, and another exit code.
        raise Failure(f"ckpt status: {done.stderr.strip()}")
    return json.loads(done.stdout)["jobs"][0]["flushed"]


def save(lab, steps, *arguments):
    """The steps, each of them durable before the next; then the daemon's counts."""
    trainer = lab.start_trainer("--steps", steps, "--storage-interval", 1, "--wait", "durable",
                                "--settle", "durable", *FROZEN, *arguments)
    lab.finish(trainer)
    return trainer.events


def check_whole(lab):
    process = lab.start_trainer("--check", lab.dir, *FROZEN)
    lab.finish(process)
    return process.events.values("whole")


def share(tools):
    with Lab(tools, "sharing") as lab, Disk(lab) as disk:
        save(lab, 1)
        first = flushed(lab)
        if first["bytes_shared"] != 0 or first["bytes"] < FROZEN_MIB << 20:
            raise Failure(f"the first save: {first}")
        lab.kill_daemon()
        before = free_bytes(disk)
        save(lab, 3, "--keep", 10)  # By a daemon that knows nothing: the first of them is whole.
        counts = flushed(lab)
        took = before - free_bytes(disk)
        if counts["bytes_shared"] < 2 * SHARED_MIN:
            raise Failure(f"two saves behind a whole one shared too little: {counts}")
        if took > first["bytes"] + 2 * WRITTEN_MAX:
            raise Failure(f"three saves took {took} bytes of the disk, one takes {first['bytes']}")
        lab.kill_daemon()
        save(lab, 5, "--keep", 1)
        lab.kill_daemon()
        if len(os.listdir(lab.dir)) > 3 or check_whole(lab) != [9]:
            raise Failure(f"not step 9 alone: {os.listdir(lab.dir)}")
        disk.mount_again()
        restored = save(lab, 1).texts("restored")
        if not restored or not restored[0].startswith("restored 9 "):
            raise Failure(f"not step 9 was restored: {restored}")
        lab.kill_daemon()


def lose_power(tools, seed):
    chance = random.Random(seed)
    promises = Promises()
    with Lab(tools, f"sharing-{seed}") as lab, Disk(lab) as disk:
        for _ in range(LOSSES):
            trainer = lab.start_trainer("--steps", 100_000, "--step-us", 1500,
                                        "--storage-interval", 1, *FROZEN)
            wait_until(lambda: len(trainer.events.values("durable")) > 2, 60, "steps to be durable")
            time.sleep(chance.random() * 0.3)
            disk.lose_power()
            crash_power.end_all(lab, trainer)
            crash_power.hold(promises, lab, trainer)
            disk.mount_again()
            check_whole(lab)
        save(lab, 2)
        lab.kill_daemon()


def keep_the_contract(tools):
    if not tools.contract:
        return
    with Lab(tools, "contract") as lab, Disk(lab) as disk:
        given = {**os.environ, "CKPT_SHARING_DISK": disk.mounted}
        done = subprocess.run([tools.contract, "file system*"], env=given, capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"the contract on XFS: {done.stdout[-3000:]}")


def tasks(tools, arguments):
    seed = random.Random(arguments.seed).randrange(1, 1 << 32)
    return [
        ("the contract on a disk that shares", functools.partial(keep_the_contract, tools)),
        ("saves share what has not changed", functools.partial(share, tools)),
        (f"power lost, seed {seed}", functools.partial(lose_power, tools, seed)),
    ]
