"""Ranks under FSDP2, each on a node of its own, to be killed and started again in any number.

sharded.py NODES JOB STEPS [DIR]: NODES is JSON, the environment of each rank. WIDTH there is the
model's, COPIES the number of groups of ranks that hold all of the model each (HSDP).
"""

import contextlib
import functools
import hashlib
import os
import signal

import ports
import ranks
import torch
import torch.distributed as dist
from ranks import say
from torch.distributed.fsdp import fully_shard

import libckpt

WIDTH = 65  # No number of ranks divides it evenly.


def make_model():
    """The last layer has fewer rows than three ranks."""
    torch.manual_seed(1)
    width = int(os.environ.get("WIDTH", WIDTH))
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.LayerNorm(width),
                               torch.nn.Tanh(), torch.nn.Linear(width, 2))  # fmt: skip


def digest(model, optimizer):
    """A digest of all parameters and their state, as a whole. All ranks call it."""
    total = hashlib.sha256()
    for parameter in model.parameters():
        state = optimizer.state.get(parameter, {})
        for part in (parameter, *(state[key] for key in sorted(state))):
            whole = part.full_tensor() if hasattr(part, "full_tensor") else part
            total.update(whole.detach().numpy().tobytes())
    return total.hexdigest()


def train(job, steps, directory=None):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    copies = int(os.environ.get("COPIES", 1))
    shape, names = (copies, world // copies), ("copies", "parts")
    mesh = dist.init_device_mesh("cpu", shape if copies > 1 else (world,),
                                 mesh_dim_names=names if copies > 1 else names[1:])  # fmt: skip
    say("mesh", *mesh.shape)
    model = make_model()
    # It never has a gradient, nor the optimizer state for it.
    model.register_parameter("unused", torch.nn.Parameter(torch.randn(7)))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = libckpt.init(job, dir=directory, save_storage_interval=4 if directory else None,
                           replicas=2)  # fmt: skip
    session.guard(optimizer)
    progress = {"losses": []}
    items = {"model": model, "optimizer": optimizer, "progress": progress, "rng": libckpt.RNG()}
    torch.manual_seed(100 + rank)
    start = 0
    try:
        restored = session.restore(items)
        start = restored.step
        say("source", restored.source, restored.world_size)
        say("items of", restored.items_of)
    except libckpt.NotFound:
        say("state", len(optimizer.state))
    say("began at", start, digest(model, optimizer))
    for step in range(start + 1, int(steps) + 1):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress["losses"].append(loss.item())
        ticket = session.save_checkpoint_if_needed(step, items)
        if ticket:
            with contextlib.suppress(libckpt.NotFound, libckpt.Unavailable):  # Another skipped it.
                ticket.committed.result(0.5)
        else:
            say("not saved", step, ticket.outcome, session.status()["last_error"])
        say("made", step, digest(model, optimizer), session.latest)
        if step == int(os.environ.get("HOLD_AT", 0)):
            signal.pause()
    say("beside training", len(session._tensors.guarded_names()))
    say("losses", hashlib.sha256(repr(progress["losses"]).encode()).hexdigest())
    say("weights", digest(model, optimizer))
    if directory:
        session.close()
    session.abandon()
    ports.leave()


main = functools.partial(ranks.main, train=train)
