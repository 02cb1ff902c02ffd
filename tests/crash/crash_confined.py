"""Daemons that --confine-to holds to some directories, by the kernel.

Inside they do all that daemons do. Outside they change nothing, as root neither: not where a
trainer sends them, nor where their own directory is led to in the middle of a run.
"""

import ctypes
import json
import os
import subprocess

import crash_power
from crash_lab import Failure, Lab, wait_until
from crash_strangers import must_say

SECONDS = 60
CREATE_RULESET, ASK_VERSION = 444, 1
SAVES = ("--storage-interval", 1, "--keep", 2)
ON_AND_ON = ("--steps", 100_000, "--step-us", 2000, *SAVES)


def prepare():
    version = ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, ASK_VERSION)
    if version < 2:
        return "the kernel has no Landlock of version 2"
    return crash_power.start_in_own_mounts()


class ConfinedLab(Lab):
    """Daemons may change files below `one` and `two`; `away` is neither."""

    def __init__(self, tools, name, **settings):
        super().__init__(tools, f"confined-{name}")
        self.one, self.two, self.away = (self.make(name) for name in ("one", "two", "away"))
        self.dir = os.path.join(self.one, "run")
        self.settings = {"LIBCKPT_CONFINE_TO": f"{self.one},{self.two}", **settings}

    def make(self, name):
        path = os.path.join(self.path, name)
        os.mkdir(path)
        return path

    def status(self):
        done = subprocess.run([self.tools.command_line, "status", "--json"],
                              env=self.environment(), capture_output=True, text=True, check=False)
        return json.loads(done.stdout)

    def must_be_confined(self):
        told = self.status()["daemon"]["confined_to"]
        if told != [self.one, self.two]:
            raise Failure(f"the daemon says that it is confined to {told}")


def tree(path):
    """Every name below, with all that a change would change."""
    found = {}
    for folder, folders, names in os.walk(path):
        for name in folders + names:
            status = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (status.st_ino, status.st_size, status.st_mtime_ns,
                                                 status.st_ctime_ns)
    return found


def must_be_as_before(path, before):
    now = tree(path)
    if now != before:
        changed = sorted(set(now.items()) ^ set(before.items()))
        raise Failure(f"changed outside: {changed[:6]}")


def steps_in(directory):
    return sorted(name for name in os.listdir(directory) if name.startswith("step-"))


def wait_for(trainer, event, value, what):
    wait_until(lambda: trainer.events.newest(event) > value or trainer.poll() is not None, SECONDS,
               what)
    if trainer.poll() is not None:
        raise Failure(f"the trainer ended early: {trainer.events.lines()[-3:]}")


def jobs_in_two_places(tools):
    """Saves, retention, a takeover after a death, and healing, beside decoys."""
    with ConfinedLab(tools, "inside", LIBCKPT_VERIFY_EVERY="200ms",
                     LIBCKPT_VERIFY_STORED="true") as lab:
        decoys = os.path.join(lab.away, "run")
        lab.settings["LIBCKPT_CONFINE_TO"] += "," + lab.away
        lab.finish(lab.start_trainer("--steps", 3, "--dir", decoys, "--settle", "durable", *SAVES))
        lab.kill_daemon()
        lab.settings["LIBCKPT_CONFINE_TO"] = f"{lab.one},{lab.two}"
        before = tree(lab.away)
        other = os.path.join(lab.two, "run")
        for _ in range(2):
            trainers = [lab.start_trainer("--steps", 5, "--settle", "durable", "--stay", *SAVES,
                                          "--job", job, "--dir", directory)
                        for job, directory in (("one", lab.dir), ("two", other))]
            for trainer in trainers:
                wait_until(lambda: trainer.events.has("trained") or trainer.poll() is not None,
                           SECONDS, "five steps to be trained")
            lab.must_be_confined()
            wait_until(lambda: len(steps_in(lab.dir)) == len(steps_in(other)) == 2, SECONDS,
                       "older steps to be deleted")
            heal(lab)
            for trainer in trainers:
                trainer.kill()
            lab.kill_daemon()
        for trainer in trainers:
            if not trainer.events.has("restored"):
                raise Failure(f"nothing was restored: {trainer.events.path}")
        lab.check_directory()
        must_be_as_before(lab.away, before)


def damage(path):
    """Returns what it was before."""
    with open(path, "rb") as file:
        good = file.read()
    with open(path, "r+b") as file:
        file.seek(len(good) // 2)
        file.write(bytes([good[len(good) // 2] ^ 1]))
    return good


def heal(lab):
    """Damages the newest step: the daemon reads no older one, and a save may be on its way."""
    before = {}

    def is_good():
        path = os.path.join(lab.dir, steps_in(lab.dir)[-1], "rank-00000.safetensors")
        if path not in before:
            before[path] = damage(path)
        with open(path, "rb") as now:
            return now.read() == before[path]

    wait_until(is_good, SECONDS, "the damaged file to be written anew")


def sent_elsewhere(tools):
    """A directory outside is refused when the trainer opens it, by name, and nothing is made."""
    with ConfinedLab(tools, "outside") as lab:
        lab.finish(lab.start_trainer("--steps", 2, "--settle", "durable", *SAVES))
        os.symlink(lab.away, os.path.join(lab.one, "link"))
        os.mkdir(os.path.join(lab.away, "there"))
        before = tree(lab.away)
        for directory in (os.path.join(lab.away, "new"), os.path.join(lab.away, "there"),
                          os.path.join(lab.one, "link", "new"), os.path.join(lab.path, "new")):
            trainer = lab.start_trainer("--steps", 1, "--dir", directory, "--job", "other")
            if lab.wait(trainer) != 2:
                raise Failure(f"{directory} was taken: {trainer.events.lines()[-3:]}")
            must_say("open", trainer.log(), "Permission denied", directory,
                     f"changes files only below {lab.one} and {lab.two}", "LIBCKPT_CONFINE_TO")
        must_be_as_before(lab.away, before)
        if os.path.exists(os.path.join(lab.path, "new")):
            raise Failure("a directory was made outside")
        lab.finish(lab.start_trainer("--steps", 2, "--settle", "durable", *SAVES))


def led_away_while_it_runs(tools):
    """The run's directory is moved out, with a link in its place: its steps are safe, training goes
    on, and so do saves once it is back."""
    with ConfinedLab(tools, "led-away") as lab:
        trainer = lab.start_trainer(*ON_AND_ON)
        wait_for(trainer, "durable", 3, "steps to be durable")
        moved = os.path.join(lab.away, "run")
        link = os.path.join(lab.one, "link")
        os.symlink(moved, link)
        exchange(lab.dir, link)
        os.rename(link, moved)
        wait_until(lambda: "changes files only below" in str(lab.status()["jobs"][0]["degraded"]),
                   SECONDS, "the job to be degraded, with the reason")
        before = tree(lab.away)
        if not steps_in(moved):
            raise Failure("no step was there to be deleted")
        wait_for(trainer, "committed", trainer.events.newest("committed") + 20, "steps in memory")
        must_be_as_before(lab.away, before)
        os.rename(moved, link)
        exchange(lab.dir, link)
        wait_for(trainer, "durable", trainer.events.newest("committed"), "a step after the return")
        trainer.kill()


def exchange(one, other):
    at, flags = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if ctypes.CDLL(None).renameat2(at, one.encode(), at, other.encode(), flags) != 0:
        raise Failure("two names cannot be exchanged here")


def unmounted_while_it_runs(tools):
    """Below a named directory a mount may come and go."""
    with ConfinedLab(tools, "mounts") as lab:
        disk, point = lab.make("disk"), os.path.join(lab.one, "point")
        os.mkdir(point)
        crash_power.run("mount", "--bind", disk, point)
        try:
            lab.dir = os.path.join(point, "run")
            trainer = lab.start_trainer(*ON_AND_ON)
            wait_for(trainer, "durable", 3, "steps to be durable")
            crash_power.run("umount", "-l", point)
            wait_until(lambda: "is it mounted?" in str(lab.status()["jobs"][0]["degraded"]),
                       SECONDS, "the job to be degraded")
            crash_power.run("mount", "--bind", disk, point)
            wait_for(trainer, "durable", trainer.events.newest("committed"),
                     "a step after the disk is back")
            trainer.kill()
        finally:
            crash_power.run("umount", "-l", point)


def tasks(tools, _):
    return [("jobs in two places", lambda: jobs_in_two_places(tools)),
            ("sent elsewhere", lambda: sent_elsewhere(tools)),
            ("led away while it runs", lambda: led_away_while_it_runs(tools)),
            ("unmounted while it runs", lambda: unmounted_while_it_runs(tools))]
