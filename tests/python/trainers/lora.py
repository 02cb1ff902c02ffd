"""Ranks, each with a model of its own of which adapters are trained: one weight in a hundred.

lora.py NODES JOB STEPS [SKIP [DIR]]: NODES is JSON, the environment of each rank. Each says what
its node has sent to the peer behind each step, and written to DIR, and what a later launch finds.
"""

import functools
import os

import ports
import ranks
import torch
import torch.distributed as dist
from ranks import say

import libckpt

WIDTH, LAYERS, RANK = 1536, 8, 7  # 72 MiB that are frozen, 0.9 % of it is trained.


class Adapted(torch.nn.Module):
    """A linear layer that stays, and two small ones that are trained beside it."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, batch):
        return torch.tanh(self.base(batch) + self.up(self.down(batch)))


def train(job, steps, skips="1", directory=None):
    torch.manual_seed(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(*[Adapted() for _ in range(LAYERS)])
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    storage = {"dir": directory, "save_storage_interval": 1, "max_ckpt_num": 1} if directory else {}
    session = libckpt.init(job, replicas=2, skip_unchanged=skips == "1", **storage)
    session.guard(optimizer)
    items = {"model": model, "optimizer": optimizer, "rng": libckpt.RNG()}
    begin = session.restore_or(items, default=0)
    say("began at", begin, ranks.digest(model.state_dict(), optimizer.state_dict()["state"]))
    for step in range(begin + 1, int(steps) + 1):
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        ticket = session.save(step, items, wait=120)
        ticket.committed.result(120)  # A copy is at the peer.
        if directory:
            ticket.durable.result(120)
        daemon = session.status()["daemon"]
        sent, flushed = daemon["copies_sent"], daemon["flushed"]
        say("made", step, ranks.digest(model.state_dict(), optimizer.state_dict()["state"]))
        say("sent", step, sent["bytes"], sent["bytes_unchanged"])
        say("flushed", step, flushed["bytes"], flushed["bytes_shared"])
        dist.barrier()
    say("trained", sum(map(torch.numel, trained)) / sum(map(torch.numel, model.parameters())))
    session.abandon()
    ports.leave()


main = functools.partial(ranks.main, train=train)
