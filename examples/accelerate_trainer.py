"""A loop over accelerate, with three lines more.

    python examples/accelerate_trainer.py --dir DIRECTORY     a small model, made here
    python examples/accelerate_trainer.py --demo              kills and resumes itself

Start it, kill it, start it again: it goes on after its newest step, from memory. Its folders
`checkpoints/checkpoint_N` are those of accelerate itself, which loads them without libckpt, too.
"""

import argparse
import hashlib
import os

import accelerate
import torch
from accelerate.utils import ProjectConfiguration

import libckpt.accelerate


class Progress:
    """Where training stands: accelerate saves what is registered."""

    def __init__(self):
        self.step = self.epoch = self.batch = 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def make(accelerator):
    accelerate.utils.set_seed(1)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(160, 32, generator=generator)
    data = torch.utils.data.TensorDataset(features, features[:, :4].tanh())
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1),
                                torch.nn.Linear(256, 4))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    return accelerator.prepare(model, optimizer, scheduler, loader)


def train(directory, steps, is_stock):
    accelerator = accelerate.Accelerator(cpu=True, project_config=ProjectConfiguration(
        project_dir=directory, automatic_checkpoint_naming=True, total_limit=2,
    ))  # fmt: skip
    model, optimizer, scheduler, loader = make(accelerator)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    state = None
    if is_stock:
        if os.path.isdir(os.path.join(directory, "checkpoints")):
            accelerator.load_state()
            accelerator.project_configuration.iteration = progress.step // 20
    else:
        state = libckpt.accelerate.attach(accelerator)  # The first line.
        state.resume()  # The second.
    model.train()
    while progress.step < steps:
        loader.set_epoch(progress.epoch)
        batches = loader
        if progress.batch:
            batches = accelerator.skip_first_batches(loader, progress.batch)
        for features, wanted in batches:
            loss = (model(features) - wanted).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.step += 1
            progress.batch += 1
            print(f"step {progress.step} loss {loss.item():.4f}", flush=True)
            if state is not None:
                state.capture(progress.step)  # The third.
            if progress.step % 20 == 0:
                accelerator.save_state()
            if progress.step == steps:
                break
        else:
            progress.epoch, progress.batch = progress.epoch + 1, 0
    accelerator.end_training()
    digest = hashlib.sha256()
    for part in model.parameters():
        digest.update(part.detach().numpy().tobytes())
    print(f"final weights {digest.hexdigest()[:16]}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dir", default="accelerate-trainer", help="the project_dir")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stock", action="store_true", help="without libckpt")
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Sums in one order: a resumed run ends bit for bit like a whole one.
    if arguments.demo:
        from demo import beside_stock

        beside_stock(__file__, arguments.steps, "accelerate", "folders")
    else:
        train(arguments.dir, arguments.steps, arguments.stock)


if __name__ == "__main__":
    main()
