"""The usual loop, whose save block is in `checkpoint`, and whose resume code is as it always was.

loop.py EXP_DIR STEPS: says "began at STEP", or "a mixture" when it resumed from several.
"""

import json
import os
import pathlib
import sys

import torch

import libckpt.torch


class Loop:
    """All states carry the step, so that a mixture of two shows."""

    def __init__(self, exp_dir):
        self.exp_dir = pathlib.Path(exp_dir)
        self.model = torch.nn.Linear(300, 300)
        self.model.register_buffer("step", torch.zeros(1, dtype=torch.int64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.state = {"global_step": 0, "running_loss": 0.0}

    def resume(self):
        if not os.path.exists(self.exp_dir / "state.json"):
            return
        with open(self.exp_dir / "state.json") as fp:
            self.state = json.load(fp)
        self.model.load_state_dict(torch.load(self.exp_dir / "model.pt", map_location="cpu"))
        self.optimizer.load_state_dict(torch.load(self.exp_dir / "optimizer.pt"))
        self.lr_scheduler.load_state_dict(torch.load(self.exp_dir / "lr_scheduler.pt"))

    def steps_seen(self):
        states = self.optimizer.state.values()
        return {
            self.state["global_step"],
            int(self.model.step),
            self.lr_scheduler.last_epoch,
            *(int(state["step"]) for state in states),
        }

    def train(self):
        loss = self.model(torch.rand(8, 300)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.lr_scheduler.step()
        self.model.step += 1
        self.state["global_step"] += 1
        self.state["running_loss"] += loss.item()

    def save(self):
        with libckpt.torch.checkpoint(self.exp_dir, step=self.state["global_step"]):
            torch.save(self.model.state_dict(), self.exp_dir / "model.pt")
            torch.save(self.optimizer.state_dict(), self.exp_dir / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), self.exp_dir / "lr_scheduler.pt")
            with open(self.exp_dir / "state.json", "w") as fp:
                json.dump(self.state, fp)


def main(exp_dir, steps):
    loop = Loop(exp_dir)
    loop.resume()
    if len(loop.steps_seen()) != 1:
        sys.exit(f"a mixture of steps {loop.steps_seen()}")
    print("began at", loop.state["global_step"], flush=True)
    while loop.state["global_step"] < int(steps):
        loop.train()
        loop.save()


if __name__ == "__main__":
    main(*sys.argv[1:])
