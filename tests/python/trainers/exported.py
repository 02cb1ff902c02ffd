"""Ranks that save one step to storage, and beside it what an export must give: whole.pt.

exported.py KIND DIR STEP SEED RANKS: KIND is "fsdp" (FSDP2) or "plain" (one rank by itself).
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import libckpt


class Model(torch.nn.Module):
    """Has what may go wrong: tied parameters, a memory order of its own, types, odd sizes."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(31, 6)
        self.convolution = torch.nn.Conv2d(3, 5, 3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(11))
        self.half = torch.nn.Linear(6, 7, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(6, 31, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.tensor(7))
        self.register_buffer("turned", torch.randn(4, 4, dtype=torch.float64).t())
        self.register_buffer("none", torch.zeros(0, 3))


def main(kind, directory, step, seed, ranks):
    if kind == "fsdp":
        import doors  # Only where this runs as a program.

        torch.optim.AdamW([torch.zeros(1)])  # The first one imports a thousand modules.
        doors.become_rank(int(ranks))
    torch.manual_seed(int(seed))
    model = Model()
    if kind == "fsdp":
        dist.init_process_group("gloo")
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model.convolution.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    session = libckpt.init("exported", dir=directory, save_storage_interval=1)
    items = {"model": model, "optimizer": optimizer, "progress": {"epoch": int(step)}}
    assert session.save(int(step), items, wait=60)
    session.wait(int(step), "durable", 60)
    whole = {name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
             for name, tensor in model.state_dict().items()}  # fmt: skip
    if os.environ.get("RANK", "0") == "0":
        torch.save(whole, os.path.join(directory, "..", "whole.pt"))
    session.close()
    if kind == "fsdp":
        doors.ports.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
