"""A plain PyTorch loop whose state outlives it.

    python examples/torch_trainer.py --dir DIRECTORY          each step in memory, some on storage
    python examples/torch_trainer.py --dir DIRECTORY --files  its own files, all of one step
    python examples/torch_trainer.py --demo                   kills and resumes itself

Start it, kill it, start it again: it goes on after the newest step. Lines with "<-" are all that
libckpt adds to the loop.
"""

import argparse
import hashlib
import json
import os

import torch

import libckpt
import libckpt.torch

EPOCH_STEPS = 50
BATCH = 64


class Run:
    """The state of a loop: a model, an optimizer, a schedule, and its place in the data."""

    def __init__(self):
        torch.manual_seed(1)
        self.data = torch.randn(EPOCH_STEPS * BATCH, 128)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(128, 1024), torch.nn.BatchNorm1d(1024), torch.nn.ReLU(),
            torch.nn.Dropout(0.1), torch.nn.Linear(1024, 128),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 1000)
        self.state = {"global_step": 0, "epoch": 0, "step_in_epoch": 0, "running_loss": 0.0}

    def batches(self):
        """The rest of the epoch; its order is that of the epoch's own seed."""
        order = torch.Generator().manual_seed(self.state["epoch"])
        rows = torch.randperm(len(self.data), generator=order).split(BATCH)
        for number in range(self.state["step_in_epoch"], EPOCH_STEPS):
            yield self.data[rows[number]]
        self.state.update(epoch=self.state["epoch"] + 1, step_in_epoch=0, running_loss=0.0)

    def train(self, batch):
        loss = (self.model(batch) - batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.state["global_step"] += 1
        self.state["step_in_epoch"] += 1
        self.state["running_loss"] += loss.item()
        mean = self.state["running_loss"] / self.state["step_in_epoch"]
        print(f"step {self.state['global_step']} loss {mean:.6f}", flush=True)

    def tell_end(self):
        digest = hashlib.sha256()
        for part in self.model.state_dict().values():
            digest.update(part.numpy().tobytes())
        print(f"final weights {digest.hexdigest()[:16]}", flush=True)


def train_with_session(directory, steps):
    """Every step is captured in memory that outlives this process, every 20th goes to storage."""
    run = Run()
    items = {"model": run.model, "optimizer": run.optimizer, "scheduler": run.scheduler,
             "rng": libckpt.RNG(), "state": run.state}  # fmt: skip
    session = libckpt.init("torch-trainer", dir=directory, save_storage_interval=20, keep=2)  # <-
    session.guard(run.optimizer)  # <-
    print("resumes after step", session.restore_or(items, default=0), flush=True)  # <-
    while run.state["global_step"] < steps:
        for batch in run.batches():
            run.train(batch)
            if run.state["global_step"] < steps:
                session.save_checkpoint_if_needed(run.state["global_step"], items)  # <-
                continue
            session.save(steps, items, wait=60)  # <- No later step replaces it.
            break
    session.close()  # <-
    run.tell_end()


def train_with_files(directory, steps):
    """The usual save block and the usual resume code; the block's files appear together."""
    run = Run()
    os.makedirs(directory, exist_ok=True)
    libckpt.torch.resume(directory)  # <-  Publishes files that were captured before a kill.
    if os.path.exists(f"{directory}/state.json"):
        with open(f"{directory}/state.json") as file:
            run.state.update(json.load(file))
        run.model.load_state_dict(torch.load(f"{directory}/model.pt"))
        run.optimizer.load_state_dict(torch.load(f"{directory}/optimizer.pt"))
        run.scheduler.load_state_dict(torch.load(f"{directory}/lr_scheduler.pt"))
        torch.set_rng_state(torch.load(f"{directory}/rng.pt"))
    print("resumes after step", run.state["global_step"], flush=True)
    while run.state["global_step"] < steps:
        for batch in run.batches():
            run.train(batch)
            if run.state["global_step"] % 10 == 0:
                with libckpt.torch.checkpoint(directory, step=run.state["global_step"]):  # <-
                    torch.save(run.model.state_dict(), f"{directory}/model.pt")
                    torch.save(run.optimizer.state_dict(), f"{directory}/optimizer.pt")
                    torch.save(run.scheduler.state_dict(), f"{directory}/lr_scheduler.pt")
                    torch.save(torch.get_rng_state(), f"{directory}/rng.pt")
                    with open(f"{directory}/state.json", "w") as file:
                        json.dump(run.state, file)
            if run.state["global_step"] == steps:
                break
    run.tell_end()


def demo(script, steps):
    from demo import Demo, compare, title

    with Demo(script) as runs:
        title("nobody is killed")
        expected = runs.whole("--dir", runs.scratch / "whole", "--steps", steps)

        title("killed twice; the first time its memory is left, the second time only storage")
        session = ("--dir", runs.scratch / "session", "--steps", steps)
        runs.lose_memory()
        runs.killed(*session)
        runs.killed(*session, after=(70, 110))
        runs.lose_memory()
        compare(expected, runs.whole(*session))

        title("the same with the loop's own files")
        files = ("--dir", runs.scratch / "files", "--steps", steps, "--files")
        runs.killed(*files)
        runs.killed(*files, after=(70, 110))
        compare(expected, runs.whole(*files))
        model = torch.load(runs.scratch / "files" / "model.pt")
        title("stock torch.load reads " + ", ".join(model))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dir", default="torch-trainer", help="where checkpoints are published")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--files", action="store_true", help="save and resume by the loop's files")
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Sums in one order: a resumed run ends bit for bit like a whole one.
    if arguments.demo:
        demo(__file__, arguments.steps)
    else:
        train = train_with_files if arguments.files else train_with_session
        train(arguments.dir, arguments.steps)


if __name__ == "__main__":
    main()
