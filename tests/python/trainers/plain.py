"""A trainer that says each step it has made, to be killed at any of them.

plain.py JOB STEPS [DIR] [--end exit|raise|return]
"""

import hashlib
import random
import sys

import torch

import libckpt


def digest(model):
    total = hashlib.sha256()
    for part in model.state_dict().values():
        total.update(part.numpy().tobytes())
    return total.hexdigest()


def main(job, steps, directory=None, end="return"):
    random.seed(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256),
                                torch.nn.Dropout(0.1), torch.nn.Linear(256, 1))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    interval = 3 if directory else None
    session = libckpt.init(job, dir=directory or None, save_storage_interval=interval)
    session.guard(optimizer)
    progress = {"losses": []}
    items = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "rng": libckpt.RNG(),
             "progress": progress}  # fmt: skip
    start = session.restore_or(items, default=0)
    print("began at", start, flush=True)
    for step in range(start + 1, int(steps) + 1):
        loss = model(torch.randn(32, 64) * random.random()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress["losses"].append(loss.item())
        if session.save_checkpoint_if_needed(step, items):
            print("saved", step)
        print("made", step, flush=True)
    print("losses", hashlib.sha256(repr(progress["losses"]).encode()).hexdigest())
    print("weights", digest(model), flush=True)
    if end == "exit":
        sys.exit(0)
    if end == "raise":
        raise RuntimeError("on purpose")


if __name__ == "__main__":
    main(*sys.argv[1:])
