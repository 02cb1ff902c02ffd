"""300 saves, and 12 trainers one after the other, leave nothing behind."""

import functools
import glob
import os
import signal

from crash_lab import Failure, Lab, wait_until
from crash_labels import Promises, train

SAVES = 300
WARM_SAVES = 60
TRAINERS = 12
# Allocators and logs; a Slot, a layout or a record kept for each save would be far more.
GROWTH_KIB_MAX = 1024
DESCRIPTOR_SLACK = 2


def usage(pid):
    """(descriptors, KiB of anonymous resident memory)."""
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        fields = dict(line.split(":", 1) for line in file)
    return descriptors, int(fields["RssAnon"].split()[0])


def compare(tools, who, before, pid):
    # Files that a flush, or the removal of one, has open at this moment are closed in the next.
    wait_until(lambda: usage(pid)[0] <= before[0] + DESCRIPTOR_SLACK, 60,
               f"the descriptors of {who} to be {before[0]} again")
    after = usage(pid)
    if not tools.are_sanitized and after[1] > before[1] + GROWTH_KIB_MAX:
        raise Failure(f"{who}: {before[1]} KiB of its own memory became {after[1]}")


def memory_segments(pid):
    return [link for fd in glob.glob(f"/proc/{pid}/fd/*") if "memfd:" in (link := read_link(fd))]


def read_link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def saves_leave_nothing(tools):
    with Lab(tools, "saves") as lab:
        daemon = lab.start_daemon()
        # Every 20th step goes to storage; "--close" at the end frees all.
        trainer = lab.start_trainer("--steps", WARM_SAVES + SAVES, "--step-us", 3000,
                                    "--storage-interval", 20, "--settle", "committed", "--close")
        wait_until(lambda: trainer.events.newest("saving") >= WARM_SAVES, 60, "the first saves")
        before = usage(trainer.pid), usage(daemon.pid)
        wait_until(lambda: trainer.events.newest("saving") >= WARM_SAVES + SAVES - 5, 60,
                   "all saves")
        compare(tools, "the trainer", before[0], trainer.pid)
        compare(tools, "the daemon", before[1], daemon.pid)
        lab.finish(trainer)
        wait_until(lambda: not memory_segments(daemon.pid), 60,
                   "the daemon to free the memory of the job that was closed")


def trainers_leave_nothing(tools):
    with Lab(tools, "trainers") as lab:
        daemon = lab.start_daemon()
        promises = Promises()
        for _ in range(2):
            train(lab, promises)
        before = usage(daemon.pid)
        for _ in range(TRAINERS):
            trainer = lab.start_trainer("--steps", 5, "--settle", "committed", "--stay")
            wait_until(lambda: trainer.events.has("trained"), 60, "the trainer to have trained")
            os.kill(trainer.pid, signal.SIGKILL)
            lab.wait(trainer)
            promises.heard(lab, trainer.events)
        train(lab, promises)
        compare(tools, "the daemon", before, daemon.pid)


def tasks(tools, arguments):
    return [("300 saves", functools.partial(saves_leave_nothing, tools)),
            (f"{TRAINERS} trainers", functools.partial(trainers_leave_nothing, tools))]
