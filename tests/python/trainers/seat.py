"""Ranks under fully_shard whose CheckpointManager of torch_checkpointing has libckpt's Storage.

seat.py DIRECTORY RANKS KIND CALLS: KIND is libckpt, stock or asynchronous (libckpt's Storage behind
a saver that writes in another process); CALLS is JSON, a list of what all ranks do: ["save", NAME,
SEED], ["load", NAME], ["again", NAME] (a save to a folder that is there), ["remove", NAME] (rank 0)
or ["pause"] until it is killed.
"""

import json
import os
import pathlib
import signal

import cuda_to_cpu
import doors
import ports
import torch
import torch.distributed as dist
from sharded import digest, make_model
from torch.distributed.checkpoint.state_dict import get_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch_checkpointing import (
    AsyncCheckpointSaverConfig,
    CheckpointManager,
    ItemSpec,
    SyncCheckpointSaverConfig,
)
from torch_checkpointing.checkpoint_layout import JsonSerialization, LayoutInfo
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.staging import CheckpointStagerConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig


class Job:
    def __init__(self, directory, kind):
        self.directory, self.is_ours = directory, kind != "stock"
        self.model = make_model()
        fully_shard(self.model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.manager = CheckpointManager(self.configuration(kind))
        doors.say("storage", type(self.manager._reader._storage).__name__)

    def configuration(self, kind):
        saver, storage = SyncCheckpointSaverConfig(), LocalFileSystemStorageConfig(False)
        if kind == "asynchronous":
            on_cpu = CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
            saver = AsyncCheckpointSaverConfig(staging_config=on_cpu)
        if not self.is_ours:
            doors.uninstall()
        else:
            import libckpt.torch_checkpointing

            storage = libckpt.torch_checkpointing.StorageConfig(self.directory, use_direct_io=False)
        resharded = ItemSpec(resharder=DefaultResharder())
        text = LayoutInfo("parts/progress_{rank}.json", JsonSerialization())
        return CheckpointManager.Config(
            items={"model": resharded, "optimizer": resharded, "progress": ItemSpec(layout=text)},
            save=saver, storage_config=storage,
        )  # fmt: skip

    def train(self, seed):
        torch.manual_seed(seed)
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 16)).square().mean().backward()
        self.optimizer.step()

    def items(self, seed):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "progress": {"seed": seed}}

    def save(self, name, seed):
        self.train(seed)
        written = self.manager.save(str(self.directory / name), self.items(seed))
        doors.say("saved", name, digest(self.model, self.optimizer))
        self.train(0)  # The capture is as it was.
        if written is not None:
            written.result(60)

    def load(self, name):
        self.train(0)  # The optimizer has a state.
        found = self.manager.load(self.directory / name, into=self.items(0))
        self.model.load_state_dict(found["model"])
        set_optimizer_state_dict(self.model, self.optimizer, found["optimizer"])
        doors.say("loaded", name, digest(self.model, self.optimizer), found["progress"]["seed"])

    def again(self, name):
        try:
            self.manager.save(str(self.directory / name), self.items(1))
        except FileExistsError as error:
            doors.say("refused", name, error)

    def remove(self, name):
        if dist.get_rank() == 0:
            self.manager._reader._storage.rmdir(self.directory / name)
        dist.barrier()


def main(directory, ranks, kind, calls):
    doors.become_rank(int(ranks))
    cuda_to_cpu.enter()  # It gathers its metadata by tensors on GPUs.
    dist.init_process_group("gloo")
    job = Job(pathlib.Path(directory), kind)
    for what, *arguments in json.loads(calls):
        if what == "pause":
            doors.say("paused")
            signal.pause()
        getattr(job, what)(*arguments)
    job.manager.close()
    if kind == "libckpt" and not os.environ.get("LIBCKPT_DISABLE"):
        from libckpt.core.files import _publish_queue

        _publish_queue.settle(wait=True)  # While all ranks are there.
    doors.say("ended")
    ports.leave()
