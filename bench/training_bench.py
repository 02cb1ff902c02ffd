"""training: what flushes and copies to a peer cost a loop on one core, while the other is free.

The loop multiplies matrices in one thread, bound to its core as launchers bind a rank; it starts
the daemons of both nodes, which have the rest of the machine. Beside it every step that is on
storage is followed by the next one, which is flushed, and copied to the daemon of the second node,
both at once. The time of the save calls is not counted: other benches measure it. Each step ends
with such a call, due or not, as in a real trainer: from the times between the calls the daemon
learns how far it must give way. With LIBCKPT_YIELD=off it does not.

A disk with one queue interrupts the same core for all writers. The loop takes another core. On a
disk with a queue for each core, the interrupts would go to the core of the writer, the daemon's.
"""

import os
import pathlib
import secrets
import socket
import sys
import tempfile
import time

import torch

import libckpt
from libckpt import _programs
from harness import Bar, Harness

STEPS = 400  # As long as a flush of the state takes, or longer.
TENSOR_BYTES = 16 << 20
STATE_BYTES_MAX = 512 << 20
NODES = ("a", "b")
WAIT = 120.0
PROBE_WRITES, PROBE_BYTES = 64, 1 << 20


def free_ports(count):
    """Numbers of ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Job:
    """Two ranks on two nodes, both of them in this process; the second has next to nothing."""

    def __init__(self, scratch, size):
        secret = scratch / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        nodes = [f"{name}@127.0.0.1:{port}/{name}" for name, port in zip(NODES, free_ports(2))]
        self.runtimes = [scratch / f"runtime-{name}" for name in NODES]
        self.sessions = [
            libckpt.init("training", scratch / "dir", save_mem_interval="never",
                         save_storage_interval=1, keep=1, rank=rank,
                         world_size=2, node=name, nodes=nodes, secret_file=str(secret),
                         runtime_dir=str(self.runtimes[rank]), raise_on_error=True,
                         log_file_path=str(scratch / "log"))
            for rank, name in enumerate(NODES)
        ]  # fmt: skip
        tensors = [torch.rand(TENSOR_BYTES // 4) for _ in range(size // TENSOR_BYTES)]
        self.items = [{"tensors": tensors}, {"tensors": [torch.rand(1)]}]
        self.step = 0
        self.on_its_way = 0  # The newest step that both ranks have captured.
        self.saves = 0

    def end_step(self):
        """On the rank that trains; no step is due."""
        self.step += 1
        self.sessions[0].save_checkpoint_if_needed(self.step, self.items[0])

    def go_on(self):
        """Saves the next step when the one before is on storage: something is always under way."""
        self.end_step()
        if self.on_its_way > (self.sessions[0].counts()["durable"] or 0):
            return
        self.step += 1
        tickets = [s.save(self.step, items) for s, items in zip(self.sessions, self.items)]
        if all(tickets):
            self.on_its_way = self.step
            self.saves += 1

    def rest(self):
        ends = time.monotonic() + WAIT
        while self.on_its_way == 0:
            self.go_on()
            assert time.monotonic() < ends, "no step is captured"
        self.sessions[0].wait(self.on_its_way, "durable", WAIT)

    def limits(self):
        giving_way = self.sessions[0].status()["daemon"]["giving_way"]
        return ", ".join(f"{name} {value}" for name, value in giving_way.items())

    def end(self):
        for session, runtime in zip(self.sessions, self.runtimes):
            session.abandon()
            _programs.run("ckpt", "stop", "--no-flush", "--runtime-dir", str(runtime))


def device_interrupts():
    """How many interrupts of devices each core has had."""
    head, *lines = pathlib.Path("/proc/interrupts").read_text().splitlines()
    cores = [int(name.removeprefix("CPU")) for name in head.split()]
    devices = [line.split() for line in lines if line.split()[0].rstrip(":").isdigit()]
    return {core: sum(int(row[place]) for row in devices) for place, core in enumerate(cores, 1)}


def bind_to_one_core(directory):
    """Binds this process to the core that the disk interrupts least. Threads that start later
    inherit it."""
    cores = sorted(os.sched_getaffinity(0))
    before = device_interrupts()
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(PROBE_WRITES):
            file.write(b"x" * PROBE_BYTES)
            os.fsync(file.fileno())
    after = device_interrupts()
    quietest = min(cores, key=lambda core: after[core] - before[core])
    os.sched_setaffinity(0, [quietest])
    return f"the loop is bound to one of {len(cores)} cores, the one that the disk interrupts least"


def main():
    harness = Harness("training", __doc__)
    harness.add_condition(bind_to_one_core(harness.directory))
    torch.set_num_threads(1)
    left, right = torch.rand(512, 512), torch.rand(512, 512)

    def steps(between):
        total = 0.0
        for _ in range(STEPS):
            between()
            begin = time.perf_counter()
            torch.mm(left, right)
            total += time.perf_counter() - begin
        return total

    with tempfile.TemporaryDirectory(prefix="training-", dir=harness.directory) as scratch:
        job = Job(pathlib.Path(scratch), min(harness.bytes, STATE_BYTES_MAX))
        job.rest()

        def without():
            job.rest()
            return steps(job.end_step)

        bar = Bar("B17", "a step while flushes and copies run / alone", 1.03, 1.08,
                  is_higher_better=False)  # fmt: skip
        harness.compare(bar, lambda: steps(job.go_on), without)
        harness.add_condition(f"{job.saves} saves; the second node is on loopback")
        harness.add_condition(f"at the end: {job.limits()}")
        job.end()
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
