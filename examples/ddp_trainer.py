"""Data-parallel training that goes on after a rank was killed.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node=2 --max-restarts=3 examples/ddp_trainer.py --dir DIR
    python examples/ddp_trainer.py --demo

The demo trains with two ranks three times: undisturbed; with a rank that is killed, which torchrun
starts again; and on from there with a single rank. It compares the weights of the first two. With
--fsdp the model is sharded, by FSDP2's fully_shard; the lines with libckpt are the same.
"""

import argparse
import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import libckpt

BATCH = 16


def make_data():
    source = torch.Generator().manual_seed(7)
    inputs = torch.randn(1024, 32, generator=source)
    return TensorDataset(inputs, inputs.square().mean(1, keepdim=True))


def train(options):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1),
                                torch.nn.Linear(256, 1))  # fmt: skip
    if options.fsdp:
        model = fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    torch.manual_seed(1 + rank)  # Each rank drops out in its own way.
    data = make_data()
    sampler = DistributedSampler(data, seed=1)
    per_epoch = len(data) // (BATCH * world_size)

    session = libckpt.init(options.job, dir=options.dir, save_storage_interval=10).guard(optimizer)
    items = {"model": model, "optimizer": optimizer, "rng": libckpt.RNG()}
    step = session.restore_or(items, default=0)
    if rank == 0:
        print(f"{world_size} rank(s), from step {step}", flush=True)
    while step < options.steps:
        sampler.set_epoch(step // per_epoch)
        # The loader draws its seed from torch's generator at each start: it has one of its own.
        loader = DataLoader(data, BATCH, sampler=sampler, generator=torch.Generator())
        for index, (inputs, wanted) in enumerate(loader):
            if index < step % per_epoch or step >= options.steps:
                continue  # It belongs to a step before the restore, or past the end.
            step += 1
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            if step not in (options.kill_at, options.steps):
                session.save_checkpoint_if_needed(step, items)
                continue
            # No later step replaces the last one, and the demo wants the one before the kill.
            ticket = session.save(step, items, wait=60)
            if step == options.kill_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                ticket.committed.result(60)
                if rank == world_size - 1:
                    print(f"rank {rank} is killed at step {step}", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
    parts = [part.full_tensor() if options.fsdp else part for part in model.parameters()]
    if rank == 0:
        weights = torch.cat([part.detach().flatten() for part in parts])
        print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest(), flush=True)
    session.close()
    dist.destroy_process_group()


def demo(*more):
    from demo import Demo, is_same, title

    with Demo(__file__) as runs:
        def run(ranks, *arguments):
            return runs.ranks(ranks, *arguments, *more, result="weights ")

        own = ("--dir", runs.scratch / "run", "--steps")
        title("two ranks, undisturbed")
        whole = run(2, "--job", "whole", "--dir", runs.scratch / "whole", "--steps", 60)
        title("two ranks, one is killed")
        is_right = is_same("weights are", whole, run(2, *own, 60, "--kill-at", 33))
        title("one rank goes on")
        run(1, *own, 90)
    return is_right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", action="store_true", help="kills and resumes itself")
    parser.add_argument("--fsdp", action="store_true", help="shards the model (FSDP2)")
    parser.add_argument("--job", default="ddp-trainer")
    parser.add_argument("--dir", help="where checkpoints go; none: memory only")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill-at", type=int, default=0, help="the step at which a rank dies")
    given = parser.parse_args()
    if given.demo:
        sys.exit(0 if demo(*["--fsdp"] * given.fsdp) else 1)
    train(given)
