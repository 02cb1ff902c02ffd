"""Ranks under fully_shard with torchtitan's containers and its manager's seat, to be killed and
started again in any number.

titan.py NODES FOLDER STEPS KIND OPTIONS: NODES is JSON, the environment of each rank; KIND is
libckpt, or stock for torchtitan's own manager; OPTIONS is JSON, for the manager's Config, besides
"alike": any number of ranks computes the same. They are what torchtitan's Trainer calls: its load
and its loop are these lines, its models want GPUs.
"""

import functools
import json
import os
import signal

import doors
import ports
import ranks
import torch
import torch.distributed as dist
from ranks import say
from sharded import digest, make_model
from torch.distributed.fsdp import fully_shard


class Loader:
    """Goes on where it was."""

    def __init__(self, rank, ranks=None):
        """`ranks`: each has its part of the same batches."""
        self.rank, self.ranks = rank, ranks
        self.generator = torch.Generator().manual_seed(rank if ranks is None else 0)
        self.batch = 0

    def next(self):
        self.batch += 1
        batch = torch.randn(8, 16, generator=self.generator)
        return batch if self.ranks is None else batch[self.rank :: self.ranks]

    def state_dict(self):
        return {"generator": self.generator.get_state(), "batch": self.batch}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.batch = state["batch"]


class Trainer:
    """The parts of torchtitan's that a manager sees."""

    def __init__(self, folder, kind, options):
        from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

        if kind == "stock":
            doors.uninstall()
            from torchtitan.components.checkpointer import CheckpointManager
        else:
            from libckpt.torchtitan import CheckpointManager
        self.step = self.ntokens_seen = 0
        ranks, is_alike = dist.get_world_size(), options.pop("alike", False)
        mesh = dist.init_device_mesh("cpu", (ranks,))
        self.model = make_model()
        for layer in (self.model[0], self.model[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        settings = default_adamw(lr=0.01)
        settings.implementation = "foreach"
        self.optimizers = settings.build(model_parts=[self.model])
        self.scheduler = LRSchedulersContainer(self.optimizers, lambda step: 1 / (1 + step / 10))
        self.loader = Loader(dist.get_rank(), ranks if is_alike else None)
        configuration = CheckpointManager.Config(
            enable=True, folder=folder, last_save_model_only=False, **options
        )
        self.checkpointer = configuration.build(
            dataloader=self.loader, model_parts=[self.model], optimizers=self.optimizers,
            lr_schedulers=self.scheduler, states={"train_state": self}, sd_adapter=None,
        )  # fmt: skip

    def state_dict(self):
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state):
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]

    def train_step(self):
        self.optimizers.zero_grad()
        loss = self.model(self.loader.next()).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.scheduler.step()
        self.ntokens_seen += 8
        return loss.item()

    def digest(self):
        (optimizer,) = self.optimizers
        return digest(self.model, optimizer)


def train(folder, steps, kind, options):
    dist.init_process_group("gloo")
    trainer = Trainer(folder, kind, json.loads(options))
    loaded = trainer.checkpointer.load()
    say("loaded", loaded)
    say("began at", trainer.step, trainer.digest(), trainer.ntokens_seen)
    while trainer.step < int(steps):
        trainer.step += 1
        loss = trainer.train_step()
        trainer.checkpointer.save(trainer.step, last_step=trainer.step == int(steps))
        say("loss", trainer.step, loss)
        session = getattr(trainer.checkpointer, "_session", None)
        if session is not None and trainer.step < int(steps):
            session.wait(trainer.step, "committed")
        dist.barrier()
        say("made", trainer.step, trainer.digest())
        if trainer.step == int(os.environ.get("HOLD_AT", 0)):
            signal.pause()
    say("rates", [group["lr"] for group in next(iter(trainer.optimizers)).param_groups])
    trainer.checkpointer.close()
    say("ended")
    ports.leave()


main = functools.partial(ranks.main, train=train)
