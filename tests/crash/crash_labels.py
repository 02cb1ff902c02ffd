"""Kills at every labelled point, at its first and at its third hit; then looks what is left."""

import functools
import os
import signal

import crash_pair
from crash_lab import STALL_MS_MAX, Failure, Lab, labels_in, wait_until

STEPS = 12
# Only a restore from storage reaches these: the daemon that reads must not have it in memory.
FROM_STORAGE = ("load.disk.read", "load.verify")
HITS = (1, 3)
# Reached by captures of tensors on a GPU: those are killed in crash_gpu.py.
GPU_LABELS = "gpu."

killed = {}  # (label, process) -> the hits at which a process was really killed.


class Promises:
    """The step that the next restore must reach at least, and the one it cannot exceed."""

    def __init__(self):
        self.durable = 0
        self.in_memory = 0
        self.memory_pid = 0  # The daemon that holds `in_memory`.
        self.attempted = 0
        self.unproven_restores = 0

    def heard(self, lab, events):
        # Steps in another daemon's memory died with it.
        daemon_died = lab.daemon_pid() != self.memory_pid
        if daemon_died:
            self.in_memory = self.durable
        # A restore opens a timeline: what was newer than its step is fenced, and promised no more.
        for step in events.values("restored"):
            self.durable = min(self.durable, step)
            self.in_memory = min(self.in_memory, step)
        self.durable = max(self.durable, events.newest("durable"))
        self.attempted = max(self.attempted, events.newest("saving"))
        self.in_memory = max(self.in_memory, events.newest("settled"))
        if not events.has("restarts"):
            self.in_memory = max(self.in_memory, events.newest("committed"))
        self.memory_pid = lab.daemon_pid()
        self.unproven_restores += 1
        if events.has("nothing") or proves_itself(events, daemon_died):
            self.unproven_restores = 0

    def least(self, lab):
        has_memory = self.memory_pid and lab.daemon_pid() == self.memory_pid
        return max(self.durable, self.in_memory if has_memory else 0)

    def hold(self, least, events):
        """`least` was taken before the restore. One that never proved itself goes back a step."""
        restored = events.values("restored")
        if not restored:
            if least and not events.has("restoring"):
                return
            if least and events.has("nothing"):
                raise Failure(f"nothing was restored, though step {least} was promised "
                              f"({events.path})")
            return
        if restored[0] > self.attempted:
            raise Failure(f"step {restored[0]} was restored, which nobody saved ({events.path})")
        if restored[0] < least and self.unproven_restores < 3:
            raise Failure(f"step {restored[0]} was restored, though {least} was promised "
                          f"({events.path})")


def proves_itself(events, daemon_died):
    """A restored_ok may have died with its daemon, and its trainer have ended before the next."""
    return events.has("restored_ok") and (not daemon_died or events.has("restarts"))


def check_not_stalled(events):
    longest = events.newest("longest")
    if longest > STALL_MS_MAX:
        raise Failure(f"a step took {longest} ms ({events.path})")


def train(lab, promises, *arguments, points="", may_die=False):
    """One trainer's life: it gets at least what was promised, and trains without a stall."""
    least = promises.least(lab)
    trainer = lab.start_trainer("--steps", STEPS, "--settle", "committed", *arguments,
                                points=points)
    code = lab.wait(trainer)
    was_killed = code == -signal.SIGKILL and may_die
    events = trainer.events if was_killed else lab.finish(trainer)
    # A daemon that died meanwhile has taken its memory along.
    if promises.memory_pid and lab.daemon_pid() != promises.memory_pid:
        least = min(least, promises.durable)
    promises.hold(least, events)
    promises.heard(lab, events)
    check_not_stalled(events)
    return was_killed


def kill_trainer_at(tools, label, hit):
    with Lab(tools, label) as lab:
        promises = Promises()
        if not label.startswith("daemon.spawn"):
            lab.start_daemon()
        if label.startswith(("load.", "restore.")):
            train(lab, promises)
        if train(lab, promises, points=f"{label}=kill@{hit}", may_die=True):
            killed.setdefault((label, "trainer"), set()).add(hit)
        lab.check_directory()
        train(lab, promises)
        train(lab, promises, "--close")
        lab.check_directory()


def end_by_signal(lab, daemon, promises):
    """SIGTERM flushes: what memory held is on storage then, unless it died at its label."""
    daemon.terminate()
    code = lab.wait(daemon)
    if code == 0:
        promises.durable = max(promises.durable, promises.in_memory)
    elif code != -signal.SIGKILL:
        raise Failure(f"the daemon ended with {code} at SIGTERM")


def kill_daemon_at(tools, label, hit):
    with Lab(tools, label) as lab:
        promises = Promises()
        if label in FROM_STORAGE:
            train(lab, promises, "--settle", "durable")
            lab.kill_daemon()
        daemon = lab.start_daemon(points=f"{label}=kill@{hit}", must_be_ready=False)
        for _ in range(3):
            train(lab, promises)
            lab.check_directory()
        if daemon.poll() is None:
            end_by_signal(lab, daemon, promises)
        if lab.wait(daemon) == -signal.SIGKILL:
            killed.setdefault((label, "daemon"), set()).add(hit)
        lab.check_directory()
        train(lab, promises, "--close")
        lab.check_directory()


def labels_here(tools):
    return [(label, process) for label, process in labels_in(tools.sources)
            if not label.startswith(GPU_LABELS)]


def tasks(tools, arguments):
    chosen = []
    for label, process in labels_here(tools):
        if arguments.only and arguments.only not in label:
            continue
        if label in crash_pair.LABELS:
            continue
        kill = kill_trainer_at if process == "trainer" else kill_daemon_at
        for hit in HITS:
            chosen.append((f"{process} at {label}@{hit}",
                           functools.partial(kill, tools, label, hit)))
    chosen += crash_pair.tasks(tools, arguments)
    return chosen


def finish(tools):
    """A label that nothing was killed at is a hole in this suite."""
    failures = []
    labels = labels_here(tools)
    labels_hit = tools.labels_hit()
    never_hit = [label for label, _ in labels if label not in labels_hit]
    for label in never_hit:
        failures.append(f"{label}: no run hit it")
    all_killed = {**killed, **crash_pair.killed}
    for label, process in labels:
        if not all_killed.get((label, process)) and label not in never_hit:
            failures.append(f"{label}: hit, but no {process} was killed at it")
    hits = sum(len(h) for h in all_killed.values())
    left_out = [label for label, _ in labels_in(tools.sources) if label.startswith(GPU_LABELS)]
    print(f"{len(labels)} labels, {hits} kills at them; left to the scenario gpu: {left_out}")
    return failures
