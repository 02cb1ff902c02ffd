"""Ranks under DistributedDataParallel, each on a node of its own, to be killed one by one.

ranks.py NODES JOB STEPS [DIR]: NODES is JSON, the environment of each rank.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import libckpt

ROWS = 12  # In a table that the ranks divide.

torch.optim.AdamW([torch.zeros(1)])  # The first one imports a thousand modules: before any fork.


def say(*words):
    os.write(1, (f"r{os.environ['RANK']} " + " ".join(map(str, words)) + "\n").encode())


def digest(*states):
    """A digest of all tensors in the states, in their order."""
    total = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            total.update(value.detach().numpy().tobytes())
        elif isinstance(value, dict):
            for part in value.values():
                add(part)

    for state in states:
        add(state)
    return total.hexdigest()


def own_slots(session):
    """Their sizes, as the daemon tells them."""
    return sorted({slot["bytes"] for slot in session.status()["daemon"]["slots"] if slot["own"]})


def make_model():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256),
                                torch.nn.Dropout(0.1), torch.nn.Linear(256, 64))  # fmt: skip
    model[0].weight_again = model[0].weight  # Tied.
    return model


def train(job, steps, directory=None):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    inner = make_model()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    interval = 4 if directory else None
    session = libckpt.init(job, dir=directory, save_storage_interval=interval, replicas=2)
    session.guard(optimizer)
    progress = {"losses": []}
    rows = torch.zeros(ROWS * (rank + 1) // world - ROWS * rank // world, 3)
    # Each element says how many steps were made.
    table = libckpt.Array("table", rows, global_shape=(ROWS, 3), offset=(ROWS * rank // world, 0))
    items = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "rng": libckpt.RNG(),
             "progress": progress}  # fmt: skip
    start = 0
    try:
        restored = session.restore(items, arrays=[table])
        start = restored.step
        say("source", restored.source, restored.world_size)
        say("items of", restored.items_of)
    except libckpt.NotFound:
        session.prepare(items)
    parameters = [dict(inner.named_parameters()), optimizer.state_dict()["state"]]
    say("began at", start, digest(*parameters, dict(inner.named_buffers())))
    say("rows", *sorted({int(value) for value in rows.flatten()}))
    say("slots", *own_slots(session))
    for step in range(start + 1, int(steps) + 1):
        loss = model(torch.randn(16, 64) * random.random()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress["losses"].append(loss.item())
        rows += 1
        ticket = session.save_checkpoint_if_needed(step, items, arrays=[table])
        if ticket:
            with contextlib.suppress(libckpt.NotFound, libckpt.Unavailable):  # Another skipped it.
                ticket.committed.result(5)
        else:
            say("not saved", step, ticket.outcome)
        parameters = [dict(inner.named_parameters()), optimizer.state_dict()["state"]]
        say("made", step, digest(*parameters, dict(inner.named_buffers())), session.latest)
        if step == int(os.environ.get("HOLD_AT", 0)):
            signal.pause()
    status = session.status()
    say("slots", *own_slots(session))
    whole = sum(3 * part.nbytes for part in inner.parameters())  # With Adam's two for each.
    say("share", status["bytes_captured"] / max(1, status["saves_started"]) / whole)
    say("losses", hashlib.sha256(repr(progress["losses"]).encode()).hexdigest())
    say("weights", digest(*parameters))
    if directory:
        with contextlib.suppress(libckpt.NotFound):  # All saves since the restore were skipped.
            session.close()  # With a flush.
    session.abandon()
    import ports  # Only where this runs as a program.

    ports.leave()


def main(nodes, *arguments, train=train):
    """Forks the ranks: their imports are done."""
    import ports  # Only where this runs as a program.

    processes = {}
    for rank, environment in enumerate(json.loads(nodes)):
        process = os.fork()
        if process == 0:
            os.environ.update(environment)
            os.environ["RANK"] = str(rank)
            if "SPACE" in environment:
                ports.enter(environment["SPACE"])
            train(*arguments)
            return
        processes[process] = rank
        print("process", rank, process, flush=True)
    failed = 0
    while processes:
        process, status = os.wait()
        failed += status != 0
        print("ended", processes.pop(process), os.waitstatus_to_exitcode(status), flush=True)
    sys.exit(failed)
