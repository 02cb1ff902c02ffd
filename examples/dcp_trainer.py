"""FSDP2 with torch.distributed.checkpoint: each step in memory, some as folders of DCP.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node=2 --max-restarts=3 examples/dcp_trainer.py --dir DIR
    python examples/dcp_trainer.py --demo

The demo trains with two ranks: undisturbed; and with a rank that is killed, which torchrun starts
again. One rank goes on from there, from memory. Then stock DCP opens the folder that it left.
Lines with "<-" are all that libckpt adds.
"""

import argparse
import functools
import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

import libckpt.dcp

ROWS = 64  # In a global batch.
EVERY = 10  # Steps between folders.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class App:
    """Model and optimizer as DCP's own tutorial wraps them."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 250), torch.nn.Tanh(),
                                         torch.nn.Linear(250, 32))  # fmt: skip
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model[::2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.003)

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer, options=OPTIONS)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"], options=OPTIONS)  # fmt: skip

    def train(self, step):
        drawn = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(step))
        batch = drawn.chunk(dist.get_world_size())[dist.get_rank()]
        self.optimizer.zero_grad()
        (self.model(batch) - batch).square().mean().backward()
        self.optimizer.step()

    def digest(self):
        parts = [part.full_tensor().detach().flatten() for part in self.model.parameters()]
        return hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest()[:16]


def train(options):
    dist.init_process_group("gloo")
    app = App()
    state = {"app": app}
    job = f"ckpt://{options.job}"
    storage = libckpt.dcp.Storage(job)  # <-
    start = storage.find(f"{job}/latest") or 0  # <-
    if start:
        dcp.load(state, checkpoint_id=f"{job}/latest", storage_reader=storage)  # <-
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} rank(s), from step {start}", flush=True)
    saving = {"process_group": dist.new_group(backend="gloo"),
              "storage_writer": storage, "async_stager": storage}  # fmt: skip  # <-
    save = None
    for step in range(start + 1, options.steps + 1):
        app.train(step)
        if save is not None:
            save.result()
        save = dcp.async_save(state, checkpoint_id=f"{job}/step-{step}", **saving)
        if step % EVERY == 0:
            save.result()
            save = dcp.async_save(state, checkpoint_id=f"{options.dir}/step-{step}", **saving)
        if step == options.kill_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if dist.get_rank() == dist.get_world_size() - 1:
                print(f"rank {dist.get_rank()} is killed at step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    if save is not None:
        save.result()
    tell(app)
    storage.session().abandon()  # Leaves the memory as it is, for whoever goes on.
    dist.destroy_process_group()


def tell(app):
    digest = app.digest()
    if dist.get_rank() == 0:
        print("weights", digest, flush=True)


def load_stock(folder):
    """The usual way, without libckpt."""
    dist.init_process_group("gloo")
    app = App()
    dcp.load({"app": app}, checkpoint_id=folder)
    tell(app)
    dist.destroy_process_group()


def demo():
    from demo import Demo, is_same, title

    with Demo(__file__) as runs:
        run = functools.partial(runs.ranks, result="weights ")
        own = ("--dir", runs.scratch / "run", "--steps")
        title("two ranks, undisturbed")
        whole = run(2, "--job", "whole", "--dir", runs.scratch / "whole", "--steps", 25)
        title("two ranks, one is killed")
        is_right = is_same("weights are", whole, run(2, *own, 25, "--kill-at", 14))
        title("one rank goes on")
        longer = run(1, *own, 30)
        title("stock DCP opens the newest folder")
        stock = run(1, "--load", runs.scratch / "run" / "step-30")
        return is_same("weights are", longer, stock) and is_right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", action="store_true", help="kills and resumes itself")
    parser.add_argument("--job", default="dcp-trainer")
    parser.add_argument("--dir", default="dcp-trainer", help="where folders go")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill-at", type=int, default=0, help="the step at which a rank dies")
    parser.add_argument("--load", help="a folder, for stock DCP to open")
    given = parser.parse_args()
    if given.demo:
        sys.exit(0 if demo() else 1)
    if given.load:
        load_stock(given.load)
    else:
        train(given)
