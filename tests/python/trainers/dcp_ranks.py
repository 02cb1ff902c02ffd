"""Ranks under FSDP2 that save and load with torch.distributed.checkpoint, to be killed and started
again in any number.

dcp_ranks.py NODES JOB STEPS [FOLDERS]: NODES is JSON, the environment of each rank. Each step is
saved in memory; with FOLDERS every fourth one is a folder there, too, and stock DCP begins with the
newest of them where STOCK is set, and saves none.
"""

import functools
import hashlib
import os
import pathlib
import signal

import doors
import ports
import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_layouts import warm_up
from ranks import say
from sharded import digest, make_model
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

ROWS = 12  # In a global batch, which any number of ranks up to four divides.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class App:
    """Model and optimizer as one Stateful, as in DCP's own tutorial."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer, options=OPTIONS)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"], options=OPTIONS)  # fmt: skip


class Progress:
    def __init__(self):
        self.losses = []

    def state_dict(self):
        return {"losses": list(self.losses)}

    def load_state_dict(self, state):
        self.losses = state["losses"]


def newest_folder(folders):
    found = pathlib.Path(folders).glob("step-*")
    return max(found, key=lambda path: int(path.name.removeprefix("step-")))


def begin(state, job, storage, folders):
    """The step to go on after."""
    if storage is None:
        folder = newest_folder(folders)
        dcp.load(state, checkpoint_id=folder)
        return int(folder.name.removeprefix("step-"))
    step = storage.find(f"ckpt://{job}/latest")
    if step is None:
        return 0
    dcp.load(state, checkpoint_id=f"ckpt://{job}/latest", storage_reader=storage)
    return step


def save_in_memory(state, checkpoint_id, **saving):
    """The save that is to be waited for; none where ALONE is set, and nothing goes on beside it."""
    save = dcp.async_save(state, checkpoint_id=checkpoint_id, **saving)
    if "ALONE" not in os.environ:
        return [save]
    save.result()
    return []


def train(job, steps, folders=None):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (world,))
    model = make_model()
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    progress = Progress()
    state = {"app": App(model, optimizer), "progress": progress}
    storage = None
    if "STOCK" in os.environ:
        doors.uninstall()
    else:
        import libckpt.dcp

        storage = libckpt.dcp.Storage(f"ckpt://{job}", replicas=2)
    start = begin(state, job, storage, folders)
    say("began at", start, digest(model, optimizer))
    # Not that of training: what both sent would get mixed up.
    group = dist.new_group(backend="gloo")
    saving = {"storage_writer": storage, "async_stager": storage, "process_group": group}
    saves = []
    for step in range(start + 1, int(steps) + 1):
        drawn = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(step))
        loss = model(drawn.chunk(world)[rank]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        progress.losses.append(loss.item() / world)
        for save in saves:
            save.result()
        if storage is None:  # Stock DCP knows no memory.
            continue
        saves = save_in_memory(state, f"ckpt://{job}/step-{step}", **saving)
        if folders and step % 4 == 0:
            for save in saves:  # Likewise for two saves.
                save.result()
            saves = [dcp.async_save(state, checkpoint_id=f"{folders}/step-{step}", **saving)]
        say("made", step, digest(model, optimizer), storage.session().latest)
        if step == int(os.environ.get("HOLD_AT", 0)):
            signal.pause()
    for save in saves:
        save.result()
    say("losses", hashlib.sha256(repr(progress.losses).encode()).hexdigest())
    say("loss", *progress.losses)
    say("weights", digest(model, optimizer))
    if storage is not None:
        storage.session().abandon()
    ports.leave()


def main(*arguments):
    warm_up()
    functools.partial(ranks.main, train=train)(*arguments)
