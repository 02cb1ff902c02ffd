"""The power fails, or the disk does: a real ext4 on a loop device loses what was not synced.

The kernel's own shutdown of a file system throws away what its journal does not have yet; with the
trainer and the daemon killed, memory is lost as well. A disk that has no room for what ext4 was
promised fails writes and syncs as a broken one does.
"""

import fcntl
import functools
import os
import random
import signal
import struct
import subprocess
import sys
import time

from crash_lab import Failure, Lab, wait_until
from crash_labels import Promises

SHUT_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, with the journal as it is on the disk.
WITHOUT_THE_JOURNAL = struct.pack("I", 2)
IN_OWN_MOUNTS = "CKPT_CRASH_OWN_MOUNTS"
CHAINS = 3
LOSSES_PER_CHAIN = 5
IMAGE_BYTES = 192 << 20
STEP_US = 1500
ON_AND_ON = ("--steps", 100_000)
UP_TO_A_DURABLE = ("--steps", 3, "--settle", "durable", "--stay")  # No later sync helps it along.


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip()}")


def prepare():
    if not os.path.exists("/dev/loop-control"):
        return "mounting an image needs a loop device"
    return start_in_own_mounts()


def start_in_own_mounts():
    """Starts this program anew with mounts of its own, which end with it. Or why that cannot be."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if IN_OWN_MOUNTS not in os.environ:
        os.environ[IN_OWN_MOUNTS] = "yes"
        sys.stdout.flush()
        os.execvp("unshare", ["unshare", "-m", sys.executable, *sys.argv])
    return ""


class Disk:
    """An ext4 below the lab, or another one, on an image that lies on a tmpfs of its own."""

    kind = "ext4"
    make = ("mkfs.ext4", "-q", "-F")
    image_bytes = IMAGE_BYTES

    def __init__(self, lab):
        self.under = os.path.join(lab.path, "under")
        self.image = os.path.join(self.under, "image")
        self.filling = os.path.join(self.under, "filling")
        self.mounted = os.path.join(lab.path, "disk")
        lab.dir = os.path.join(self.mounted, "checkpoints")

    def __enter__(self):
        os.mkdir(self.under)
        os.mkdir(self.mounted)
        run("mount", "-t", "tmpfs", "-o", f"size={self.image_bytes}", "tmpfs", self.under)
        with open(self.image, "wb") as image:
            image.truncate(self.image_bytes)
        run(*self.make, self.image)
        self.mount()
        return self

    def __exit__(self, *_):
        for place in (self.mounted, self.under):
            subprocess.run(["umount", "-l", place], capture_output=True, check=False)

    def mount(self):
        run("mount", "-t", self.kind, "-o", "loop", self.image, self.mounted)

    def mount_again(self):
        """As after a restart of the machine: the journal is replayed, and nothing is cached."""
        run("umount", self.mounted)
        self.mount()

    def lose_power(self):
        directory = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, SHUT_DOWN, WITHOUT_THE_JOURNAL)
        finally:
            os.close(directory)

    def fill(self):
        """From now on the disk has no block that the image does not have yet."""
        with open(self.filling, "wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            except OSError:
                pass

    def empty(self):
        os.unlink(self.filling)


def end_all(lab, trainer):
    if trainer.poll() is None:
        os.kill(trainer.pid, signal.SIGKILL)
    lab.wait(trainer)
    lab.kill_daemon()


def hold(promises, lab, trainer):
    """Memory is gone: the trainer restored what storage had, and adds what it was promised."""
    promises.hold(promises.durable, trainer.events)
    promises.heard(lab, trainer.events)


def train(lab, chance, steps):
    return lab.start_trainer("--step-us", STEP_US, "--storage-interval", chance.choice([1, 2, 5]),
                             *steps)


def train_to_the_end(promises, lab):
    trainer = lab.start_trainer("--steps", 3, "--settle", "durable", "--close")
    lab.finish(trainer)
    lab.kill_daemon()
    hold(promises, lab, trainer)


def lose_power_again_and_again(tools, seed):
    chance = random.Random(seed)
    promises = Promises()
    with Lab(tools, f"power-{seed}") as lab, Disk(lab) as disk:
        for _ in range(LOSSES_PER_CHAIN):
            trainer = train(lab, chance, chance.choice([ON_AND_ON, UP_TO_A_DURABLE]))
            if chance.random() < 0.8:  # Else also before there is a checkpoint of this life.
                wait_until(lambda: trainer.events.has("durable"), 30, "a step to be durable")
            time.sleep(chance.random() * chance.choice([0.0, 0.3]))
            disk.lose_power()
            time.sleep(chance.random() * 0.05)  # In which the daemon meets a disk that is gone.
            end_all(lab, trainer)
            hold(promises, lab, trainer)
            disk.mount_again()
            lab.check_directory()
            if chance.random() < 0.5:
                train_to_the_end(promises, lab)
        train_to_the_end(promises, lab)


def fail_as_a_broken_disk(tools, seed):
    chance = random.Random(seed)
    promises = Promises()
    with Lab(tools, f"broken-{seed}") as lab, Disk(lab) as disk:
        trainer = train(lab, chance, ON_AND_ON)
        wait_until(lambda: trainer.events.has("durable"), 30, "a step to be durable")
        disk.fill()
        wait_until(lambda: "flush given up" in lab.daemon_log(), 30, "the disk to fail")
        before = trainer.events.newest("committed")
        wait_until(lambda: trainer.events.newest("committed") > before, 30, "training to go on")
        end_all(lab, trainer)
        hold(promises, lab, trainer)
        disk.empty()
        disk.mount_again()
        lab.check_directory()
        train_to_the_end(promises, lab)


def tasks(tools, arguments):
    chance = random.Random(arguments.seed)
    seeds = [chance.randrange(1, 1 << 32) for _ in range(CHAINS)]
    return [
        *((f"power lost, seed {seed}", functools.partial(lose_power_again_and_again, tools, seed))
          for seed in seeds),
        *((f"a broken disk, seed {seed}", functools.partial(fail_as_a_broken_disk, tools, seed))
          for seed in seeds[:2]),
    ]  # fmt: skip
