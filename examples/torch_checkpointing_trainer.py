"""A training that saves with torch_checkpointing, and libckpt's Storage in its seat.

    python examples/torch_checkpointing_trainer.py --dir DIRECTORY   a small model, made here
    python examples/torch_checkpointing_trainer.py --demo            kills and resumes itself

A save returns when the objects are captured in memory, and the folder appears while training goes
on. Kill it and start it again: it publishes the folder that was on its way, and goes on from there.
One process, since torch_checkpointing gathers the metadata of several over GPUs. The lines with
"<-" are all that libckpt adds.
"""

import argparse
import contextlib
import hashlib
import pathlib

import torch
from torch_checkpointing import CheckpointManager, ItemSpec, SyncCheckpointSaverConfig
from torch_checkpointing.checkpoint_layout import JsonSerialization, LayoutInfo
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

EVERY = 10  # Steps between folders.


class Training:
    def __init__(self, directory, is_stock):
        self.directory, self.step = pathlib.Path(directory), 0
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(),
                                         torch.nn.Linear(256, 32))  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        if not is_stock:
            from libckpt.torch_checkpointing import StorageConfig  # <-

            storage = StorageConfig(directory, use_direct_io=False)  # <-
        self.manager = CheckpointManager(CheckpointManager.Config(
            items={"progress": ItemSpec(layout=LayoutInfo("progress.json", JsonSerialization()))},
            save=SyncCheckpointSaverConfig(), storage_config=storage,
        ))  # fmt: skip

    def items(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                "progress": {"step": self.step}}  # fmt: skip

    def train(self):
        self.step += 1
        batch = torch.randn(64, 32, generator=torch.Generator().manual_seed(self.step))
        self.optimizer.zero_grad()
        loss = (self.model(batch) - batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self):
        self.manager.save(str(self.directory / f"step-{self.step}"), self.items())

    def resume(self):
        """From the newest folder. The optimizer makes a step first, so that it has its state."""
        steps = [int(path.name[5:]) for path in self.directory.glob("step-*")]
        if not steps:
            return
        self.train()
        found = self.manager.load(self.directory / f"step-{max(steps)}", into=self.items())
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.step = found["progress"]["step"]
        print(f"resumes after step {self.step}", flush=True)


def train(directory, steps, is_stock):
    training = Training(directory, is_stock)
    with contextlib.closing(training.manager):
        training.resume()
        while training.step < steps:
            loss = training.train()
            print(f"step {training.step} loss {loss:.4f}", flush=True)
            if training.step % EVERY == 0:
                training.save()
        digest = hashlib.sha256()
        for part in training.model.parameters():
            digest.update(part.detach().numpy().tobytes())
        print(f"final weights {digest.hexdigest()[:16]}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dir", default="torch-checkpointing-trainer", help="where folders go")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stock", action="store_true", help="without libckpt")
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Sums in one order: a resumed run ends bit for bit like a whole one.
    if arguments.demo:
        from demo import beside_stock

        beside_stock(__file__, arguments.steps, "torch_checkpointing", "folders")
    else:
        train(arguments.dir, arguments.steps, arguments.stock)


if __name__ == "__main__":
    main()
