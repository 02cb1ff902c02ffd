"""Replica groups of torchft; one that was killed gets the state from the other one's daemon.

    python examples/torchft_trainer.py --lighthouse URL --group 0        on one machine
    python examples/torchft_trainer.py --lighthouse URL --group 1        on another
    python examples/torchft_trainer.py --demo

The demo trains two groups twice: undisturbed; and with one that is killed and started again, which
heals. Both groups must end with the weights of the undisturbed ones.
"""

import argparse
import hashlib
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from datetime import timedelta

import torch
import torchft
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer

import libckpt.torchft

GROUPS = 2
BATCH = 16


def batch(step, group):
    source = torch.Generator().manual_seed(step * GROUPS + group)
    inputs = torch.randn(BATCH, 32, generator=source)
    return inputs, inputs.square().mean(1, keepdim=True)


def train(options):
    torch.manual_seed(1 + options.group)  # Group 1 begins with the weights of group 0.
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

    def state_dict():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"healed at step {manager.current_step()}", flush=True)

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load_state_dict, state_dict=state_dict,
        min_replica_size=GROUPS, use_async_quorum=False, timeout=timedelta(seconds=30),
        replica_id=f"group{options.group}", rank=0, world_size=1,
        store_addr="localhost", store_port=store.port, lighthouse_addr=options.lighthouse,
        checkpoint_transport=libckpt.torchft.Transport("torchft-trainer"),
    )  # fmt: skip
    parallel = torchft.DistributedDataParallel(manager, model)
    stepped = torchft.Optimizer(manager, optimizer)
    while manager.current_step() < options.steps:
        stepped.zero_grad()  # Asks for a quorum, and heals.
        step = manager.current_step()
        inputs, wanted = batch(step, options.group)
        loss = torch.nn.functional.mse_loss(parallel(inputs), wanted)
        loss.backward()
        stepped.step()  # Or not, when a group was lost: then the step is made again.
        if manager.current_step() > step:
            print(f"step {manager.current_step()} loss {loss.item():.4f}", flush=True)
    weights = torch.cat([part.detach().flatten() for part in model.parameters()])
    print("final", hashlib.sha256(weights.numpy().tobytes()).hexdigest(), flush=True)
    manager.shutdown(wait=False)
    sys.stdout.flush()
    os._exit(0)  # Threads of torchft may wait for the other group, which has ended.


def serve():
    """A lighthouse, until its standard input ends."""
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=GROUPS, join_timeout_ms=1000,
                                  heartbeat_timeout_ms=1000)  # fmt: skip
    print(lighthouse.address(), flush=True)
    sys.stdin.read()
    lighthouse.shutdown()


class Demo:
    """Both groups, each as on a machine of its own: it has a daemon of its own."""

    def __init__(self, scratch, steps):
        self._scratch, self._steps = scratch, steps
        free = [socket.create_server(("127.0.0.1", 0)) for _ in range(GROUPS)]
        self._ports = [each.getsockname()[1] for each in free]
        for each in free:
            each.close()

    def run(self, kill_at=None):
        """Trains them to their ends; returns the last lines of both."""
        lighthouse = subprocess.Popen([sys.executable, __file__, "--serve"], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL)  # fmt: skip
        self._lighthouse = lighthouse.stdout.readline().strip()
        groups = [self._start(group) for group in range(GROUPS)]
        try:
            for line in self._lines(groups[1], 1) if kill_at is not None else ():
                if line.startswith(f"step {kill_at} "):
                    groups[1].kill()
                    groups[1].communicate()
                    print(f"--- kill -9 of group 1 at step {kill_at}", flush=True)
                    groups[1] = self._start(1)
                    break
            return [list(self._lines(process, group))[-1:] for group, process in enumerate(groups)]
        finally:
            for process in groups:
                process.kill()
                process.communicate()
            lighthouse.communicate("")

    def _start(self, group):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "LIBCKPT_PORT": str(self._ports[group]),
            "LIBCKPT_RUNTIME_DIR": f"{self._scratch}/runtime{group}",
            "LIBCKPT_NODE": f"node{group}", "LIBCKPT_INTERFACE": "127.0.0.1",
        }  # fmt: skip
        command = [sys.executable, __file__, "--lighthouse", self._lighthouse,
                   "--group", str(group), "--steps", str(self._steps)]  # fmt: skip
        with open(f"{self._scratch}/group{group}.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True,
                                    env=environment)  # fmt: skip

    def _lines(self, process, group):
        """Its output, shown in part."""
        for line in process.stdout:
            if line.startswith(("healed ", "final ")):
                print(f"    group {group}: {line}", end="", flush=True)
            yield line.strip()

    def stop(self):
        for group in range(GROUPS):
            stop = [pathlib.Path(libckpt.__file__).parent / "bin" / "ckpt", "stop"]
            subprocess.run([*stop, "--runtime-dir", f"{self._scratch}/runtime{group}"],
                           capture_output=True, check=False)  # fmt: skip


def demo(steps):
    scratch = tempfile.mkdtemp(prefix="ckpt-torchft-")
    runs = Demo(scratch, steps)
    try:
        print("== two groups, undisturbed", flush=True)
        whole = runs.run()
        print("== two groups, one is killed", flush=True)
        healed = runs.run(kill_at=random.randint(steps // 4, steps // 2))
    finally:
        runs.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    ends = {"".join(said) for said in [*whole, *healed]}
    is_same = len(ends) == 1 and ends.pop().startswith("final ")
    print("the weights are", "the same" if is_same else "DIFFERENT", flush=True)
    return is_same


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", action="store_true", help="kills and heals itself")
    parser.add_argument("--serve", action="store_true", help="is the lighthouse")
    parser.add_argument("--lighthouse", help="the address of the torchft_lighthouse")
    parser.add_argument("--group", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    if given.demo:
        sys.exit(0 if demo(given.steps) else 1)
    serve() if given.serve else train(given)
