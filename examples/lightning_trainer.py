"""A fit of Lightning, with a plugin, a callback and a word for where to go on.

    python examples/lightning_trainer.py --dir DIRECTORY     a small model, made here
    python examples/lightning_trainer.py --demo              kills and resumes itself

Start it, kill it, start it again: it goes on after its newest step, from memory. Its files are
those of Lightning itself, which resumes from them without libckpt, too.
"""

import argparse
import hashlib
import logging
import pathlib
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import libckpt.lightning

BATCHES = 16


class Loader:
    """Batches in another order each epoch. With its state a fit goes on in the middle of one."""

    def __init__(self):
        self.epoch = self.batch = 0
        self.data = torch.randn(BATCHES, 8, 32, generator=torch.Generator().manual_seed(1))

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
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1),
            torch.nn.Linear(256, 4),
        )  # fmt: skip

    def training_step(self, features, _):
        return (self.layers(features) - features[:, :4].tanh()).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Tell(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step} loss {outputs['loss'].item():.4f}", flush=True)


def train(directory, steps, is_stock):
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    files = ModelCheckpoint(f"{directory}/files", every_n_train_steps=20)
    more = {"callbacks": [Tell(), files]}
    if is_stock:
        found = sorted(pathlib.Path(directory, "files").glob("*.ckpt"))
        newest = found[-1] if found else None
    else:
        more = {"callbacks": [Tell(), libckpt.lightning.Callback(), files],
                "plugins": [libckpt.lightning.CheckpointIO()]}  # fmt: skip
        newest = libckpt.lightning.NEWEST
    trainer = pl.Trainer(max_steps=steps, max_epochs=-1, default_root_dir=directory, logger=False,
                         accelerator="cpu", devices=1, enable_progress_bar=False,
                         enable_model_summary=False, **more)  # fmt: skip
    torch.manual_seed(1)
    model = Model()
    trainer.fit(model, Loader(), ckpt_path=newest)
    digest = hashlib.sha256()
    for part in model.parameters():
        digest.update(part.detach().numpy().tobytes())
    print(f"final weights {digest.hexdigest()[:16]}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dir", default="lightning-trainer", help="the default_root_dir")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stock", action="store_true", help="without libckpt")
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Sums in one order: a resumed run ends bit for bit like a whole one.
    if arguments.demo:
        from demo import beside_stock

        beside_stock(__file__, arguments.steps, "Lightning", "file")
    else:
        train(arguments.dir, arguments.steps, arguments.stock)


if __name__ == "__main__":
    main()
