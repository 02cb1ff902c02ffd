"""A fit of Lightning, to be killed at any step.

fit.py ROOT KIND OPTIONS: KIND is stock or libckpt; OPTIONS is JSON: "ranks", "steps", "every"
(ModelCheckpoint), "path" (ckpt_path), "hold" (after that step), "dies" (when the file of that
step was saved), "waits" (this long for each step to be committed), "accumulate", "gpu", "width" (of
the model), "nodes" (the environment of each rank, where each is on a node of its own) and "alike"
(any number of ranks computes the same). Each rank says "began STEP", "made STEP LOSS" and, at the
end, "weights DIGEST".
"""

import contextlib
import hashlib
import json
import logging
import os
import signal
import warnings

import doors
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

BATCHES = 9


class Loader:
    """Batches in another order each epoch; it goes on where it was."""

    def __init__(self, rank, ranks=None):
        """`ranks`: each has its part of the same batches."""
        self.rank, self.epoch, self.batch = rank, 0, 0
        generator = torch.Generator().manual_seed(rank if ranks is None else 0)
        self.data = torch.randn(BATCHES, 4, 20, generator=generator)
        if ranks is not None:
            self.data = self.data[:, rank::ranks]

    def __len__(self):
        return BATCHES

    def __iter__(self):
        order = torch.randperm(BATCHES, generator=torch.Generator().manual_seed(self.epoch))
        while self.batch < BATCHES:
            self.batch += 1
            yield self.data[order[self.batch - 1]]
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state):
        self.epoch, self.batch = state["epoch"], state["batch"]


class Model(pl.LightningModule):
    def __init__(self, dropout, width):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(),
                                          torch.nn.Dropout(dropout),
                                          torch.nn.Linear(width, 4))  # fmt: skip

    def training_step(self, batch, _):
        loss = (self.layers(batch[:, :16]) - batch[:, 16:]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        schedule = {"scheduler": scheduler, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Dying(ModelCheckpoint):
    """Dies where it has saved the file of a step, which memory does not have yet."""

    dies = None

    def on_train_batch_end(self, trainer, *arguments):
        super().on_train_batch_end(trainer, *arguments)
        if trainer.global_step == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)


class Say(pl.Callback):
    def __init__(self, hold, memory, waits=None):
        self._hold, self._memory, self._waits = hold, memory, waits

    def on_train_start(self, trainer, module):
        doors.say("began", trainer.global_step)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        doors.say("made", trainer.global_step, outputs["loss"].item())

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if self._waits and self._memory is not None:  # The last of the callbacks has captured it.
            with contextlib.suppress(Exception):  # It was skipped.
                self._memory.session.wait(trainer.global_step, "committed", self._waits)
        if trainer.global_step == self._hold:
            if self._memory is not None:
                session = self._memory.session
                session.finish_capture()
                with contextlib.suppress(Exception):  # It was skipped.
                    session.wait(session.counts()["captured"], "committed")
                doors.say("held", session.latest)
            signal.pause()


def train(root, kind, options):
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    plugins, memory, path = [], None, options.get("path")
    if kind == "libckpt":
        import libckpt.lightning

        plugins, memory = [libckpt.lightning.CheckpointIO()], libckpt.lightning.Callback()
        path = path or libckpt.lightning.NEWEST
    ranks, nodes = options.get("ranks", 1), options.get("nodes", ())
    rank = int(os.environ.get("RANK", 0))
    files = Dying(f"{root}/files", every_n_train_steps=options.get("every", 5), save_top_k=1,
                  monitor="step", mode="max", save_last=options.get("last", False))  # fmt: skip
    files.dies = options.get("dies")
    callbacks = [*([memory] if memory else []), files,
                 Say(options.get("hold"), memory, options.get("waits"))]  # fmt: skip
    trainer = pl.Trainer(
        max_steps=options.get("steps", 30), default_root_dir=root,
        accelerator="auto" if options.get("gpu") else "cpu",
        devices=1 if nodes else ranks, num_nodes=len(nodes) or 1,
        strategy="ddp" if ranks > 1 else "auto", logger=False, plugins=plugins,
        callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=options.get("accumulate", 1), max_epochs=-1,
    )  # fmt: skip
    torch.manual_seed(5)
    is_alike = options.get("alike", False)
    model = Model(0.0 if is_alike else 0.2, options.get("width", 64))
    torch.manual_seed(50 + rank)
    trainer.fit(model, Loader(rank, ranks if is_alike else None), ckpt_path=path)
    total = hashlib.sha256()
    for part in model.parameters():
        total.update(part.detach().cpu().numpy().tobytes())
    doors.say("weights", total.hexdigest())


def main(root, kind, options):
    options = json.loads(options)
    ranks = options.get("ranks", 1)
    if kind == "stock":
        doors.uninstall()
    nodes = options.get("nodes", ())
    if ranks > 1 or nodes:
        doors.become_rank(ranks, nodes)
    train(root, kind, options)
