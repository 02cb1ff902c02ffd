"""Ranks, each with a model of its own of which adapters are trained: one weight in a hundred.

lora.py NODES JOB STEPS [SKIP [DIR]]: NODES is JSON, the environment of each rank. Each says what
its node has sent to the peer behind each step, and written to DIR, and what a later launch finds.
SHAPES in the environment is JSON: of each rank the width, the layers and the rank of its adapters.
Digests of such states, which may be large, are left out.
"""

import functools
import json
import os

import ports
import ranks
import torch
import torch.distributed as dist
from ranks import say

import libckpt

SHAPE = 1536, 8, 7  # 72 MiB that are frozen, 0.9 % of it is trained.


class Adapted(torch.nn.Module):
    """A linear layer that stays, and two small ones that are trained beside it."""

    def __init__(self, width, rank):
        super().__init__()
        self.base = torch.nn.Linear(width, width).requires_grad_(False)
        self.down = torch.nn.Linear(width, rank, bias=False)
        self.up = torch.nn.Linear(rank, width, bias=False)

    def forward(self, batch):
        return torch.tanh(self.base(batch) + self.up(self.down(batch)))


def digest(model, optimizer):
    if "SHAPES" in os.environ:
        return "unknown"
    return ranks.digest(model.state_dict(), optimizer.state_dict()["state"])


def train(job, steps, skips="1", directory=None):
    own = int(os.environ["RANK"])
    torch.manual_seed(own)
    dist.init_process_group("gloo")
    width, layers, rank = json.loads(os.environ["SHAPES"])[own] if "SHAPES" in os.environ else SHAPE
    model = torch.nn.Sequential(*[Adapted(width, rank) for _ in range(layers)])
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # Most loops give it all of them.
    storage = {"dir": directory, "save_storage_interval": 1, "max_ckpt_num": 1} if directory else {}
    session = libckpt.init(job, replicas=2, skip_unchanged=skips == "1", **storage)
    session.guard(optimizer)
    items = {"model": model, "optimizer": optimizer, "rng": libckpt.RNG()}
    begin = session.restore_or(items, default=0)
    say("began at", begin, digest(model, optimizer))
    for step in range(begin + 1, int(steps) + 1):
        optimizer.zero_grad()
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
        ticket = session.save(step, items, wait=120)
        ticket.committed.result(120)  # A copy is at the peer.
        if directory:
            ticket.durable.result(120)
        daemon = session.status()["daemon"]
        sent, flushed = daemon["copies_sent"], daemon["flushed"]
        say("made", step, digest(model, optimizer))
        say("sent", step, sent["bytes"], sent["bytes_unchanged"])
        say("flushed", step, flushed["bytes"], flushed["bytes_shared"])
        dist.barrier()
    say("trained", sum(map(torch.numel, trained)) / sum(map(torch.numel, model.parameters())))
    session.abandon()
    ports.leave()


main = functools.partial(ranks.main, train=train)
