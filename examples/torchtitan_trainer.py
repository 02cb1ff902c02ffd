"""A training with torchtitan's containers and libckpt's manager in the seat of torchtitan's own.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node=2 --max-restarts=3 examples/torchtitan_trainer.py
    python examples/torchtitan_trainer.py --demo

The demo trains with two ranks: undisturbed, by torchtitan's own manager; and with a rank that is
killed, which torchrun starts again. Then torchtitan's own manager goes on from the folder that it
left. The loop has the calls of torchtitan's Trainer, whose models want GPUs. The line with "<-" is
all that libckpt adds.
"""

import argparse
import functools
import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

ROWS = 64  # In a global batch.
EVERY = 10  # Steps between folders.


class Trainer:
    def __init__(self, directory, is_stock):
        if is_stock:
            from torchtitan.components.checkpointer import CheckpointManager
        else:
            from libckpt.torchtitan import CheckpointManager  # <-
        self.step = 0
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 250), torch.nn.Tanh(),
                                         torch.nn.Linear(250, 32))  # fmt: skip
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model[::2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        settings = default_adamw(lr=0.003)
        settings.implementation = "foreach"
        self.optimizers = settings.build(model_parts=[self.model])
        self.schedulers = LRSchedulersContainer(self.optimizers, lambda step: 1 / (1 + step / 50))
        configuration = CheckpointManager.Config(enable=True, folder=directory, interval=EVERY,
                                                 last_save_model_only=False)  # fmt: skip
        self.checkpointer = configuration.build(
            dataloader=None, model_parts=[self.model], optimizers=self.optimizers,
            lr_schedulers=self.schedulers, states={"train_state": self}, sd_adapter=None,
        )  # fmt: skip

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]

    def train_step(self):
        self.step += 1
        drawn = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(self.step))
        batch = drawn.chunk(dist.get_world_size())[dist.get_rank()]
        self.optimizers.zero_grad()
        (self.model(batch) - batch).square().mean().backward()
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.schedulers.step()

    def digest(self):
        parts = [part.full_tensor().detach().flatten() for part in self.model.parameters()]
        return hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest()[:16]


def train(options):
    dist.init_process_group("gloo")
    trainer = Trainer(options.dir, options.stock)
    trainer.checkpointer.load()
    is_first = dist.get_rank() == 0
    if is_first:
        print(f"{dist.get_world_size()} rank(s), from step {trainer.step}", flush=True)
    while trainer.step < options.steps:
        trainer.train_step()
        trainer.checkpointer.save(trainer.step, last_step=trainer.step == options.steps)
        if trainer.step == options.kill_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if dist.get_rank() == dist.get_world_size() - 1:
                print(f"rank {dist.get_rank()} is killed at step {trainer.step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    digest = trainer.digest()
    if is_first:
        print("weights", digest, flush=True)
    trainer.checkpointer.close()
    dist.destroy_process_group()


def demo():
    from demo import Demo, is_same, title

    with Demo(__file__) as runs:
        run = functools.partial(runs.ranks, result="weights ")
        whole, own = ("--dir", runs.scratch / "whole"), ("--dir", runs.scratch / "own")
        title("torchtitan's own manager, undisturbed")
        expected = run(2, *whole, "--steps", 35, "--stock")
        title("libckpt's manager; a rank is killed")
        is_right = is_same("weights are", expected, run(2, *own, "--steps", 35, "--kill-at", 27))
        title("both go on with torchtitan's own manager, each from its folder")
        expected = run(2, *whole, "--steps", 40, "--stock")
        stock = run(2, *own, "--steps", 40, "--stock")
        return is_same("weights are", expected, stock) and is_right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", action="store_true", help="kills and resumes itself")
    parser.add_argument("--dir", default="torchtitan-trainer", help="where folders go")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stock", action="store_true", help="torchtitan's own manager")
    parser.add_argument("--kill-at", type=int, default=0, help="the step at which a rank dies")
    given = parser.parse_args()
    if given.demo:
        sys.exit(0 if demo() else 1)
    train(given)
