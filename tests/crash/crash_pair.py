"""Two nodes on loopback addresses: what only a job with a peer reaches."""

import functools
import os
import signal
import socket

from crash_lab import STALL_MS_MAX, Failure, Lab, wait_until

LABELS = ("repl.begin", "repl.end", "repl.ack.before", "repl.ack.after", "load.peer.first",
          "load.peer.last")
HITS = (1, 3)
NODES = ("A", "B")
STEPS = 10
SECONDS = 60

killed = {}  # As in crash_labels.


class Pair:
    """Rank 0 on node A, rank 1 on node B, each with a daemon of its own."""

    def __init__(self, lab):
        self.lab = lab
        self.settled = 0
        self.durable = 0
        addresses = [f"127.0.0.{2 + i}" for i in range(len(NODES))]
        self.nodes = ",".join(f"{node}@{address}:{free_port(address)}"
                              for node, address in zip(NODES, addresses))
        self.secret = os.path.join(lab.path, "secret")
        with open(os.open(self.secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("a secret of the two nodes of this test\n")

    def start(self):
        """Both trainers, which stay when they have trained."""
        return [self.lab.start_trainer(
            "--rank", rank, "--world", len(NODES), "--node", node, "--nodes", self.nodes,
            "--secret", self.secret, "--steps", STEPS, "--step-us", 4000, "--settle", "committed",
            "--stay", node=node) for rank, node in enumerate(NODES)]

    def train(self, has_lost_all=False):
        """Both restore the same step, no older than promised, and train without a stall."""
        trainers = self.start()
        for trainer in trainers:
            wait_until(lambda one=trainer: one.events.has("trained") or one.poll() is not None,
                       SECONDS, f"a rank to train: {trainer.events.path}")
            if trainer.poll() is not None:
                self.lab.finish(trainer)
        for trainer in trainers:
            os.kill(trainer.pid, signal.SIGKILL)
            self.lab.wait(trainer)
        self.check([trainer.events for trainer in trainers], has_lost_all)

    def check(self, events, has_lost_all):
        restored = [one.newest("restored") for one in events]
        if len(set(restored)) != 1:
            raise Failure(f"the ranks restored different steps: {restored} ({events[0].path})")
        least = self.durable if has_lost_all else max(self.settled, self.durable)
        if restored[0] < least:
            raise Failure(f"step {restored[0]} was restored, though {least} was promised "
                          f"({events[0].path})")
        for one in events:
            if one.newest("longest") > STALL_MS_MAX:
                raise Failure(f"a step took {one.newest('longest')} ms ({one.path})")
        self.settled = min(one.newest("settled") for one in events)
        self.durable = max(self.durable, *(one.newest("durable") for one in events))


def free_port(address):
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def kill_one_at(tools, label, hit, victim):
    """The other node's copies carry the job over the loss of one daemon."""
    with Lab(tools, label) as lab:
        pair = Pair(lab)
        other = NODES[1 - NODES.index(victim)]
        lab.start_daemon(node=other)
        is_restore = label.startswith("load.")
        points = f"{label}=kill@{hit}"
        if is_restore:
            lab.start_daemon(node=victim)
            pair.train()
            lab.kill_daemon(victim)
        daemon = lab.start_daemon(points, node=victim)
        pair.train()
        pair.train()
        if daemon.poll() == -signal.SIGKILL:
            killed.setdefault((label, "daemon"), set()).add(hit)
        lab.kill_daemon(victim)
        pair.train()
        for node in NODES:
            lab.kill_daemon(node)
        for rank in range(len(NODES)):
            lab.check_directory(rank, len(NODES))
        pair.train(has_lost_all=True)


def tasks(tools, arguments):
    chosen = []
    for label in LABELS:
        if arguments.only and arguments.only not in label:
            continue
        for hit in HITS:
            for victim in NODES:
                chosen.append((f"daemon {victim} at {label}@{hit}",
                               functools.partial(kill_one_at, tools, label, hit, victim)))
    return chosen
