"""DeepSpeed ZeRO training that goes on after a rank was killed, also with fewer ranks.

    torchrun --standalone --nproc-per-node=2 examples/deepspeed_trainer.py --folder DIR
    python examples/deepspeed_trainer.py --demo

The demo trains with two ranks undisturbed; then it kills a rank, and torchrun starts both again,
which go on from memory; then a single rank goes on with twice the gradient accumulation; at last
stock DeepSpeed loads the folder. It compares the losses.
"""

import argparse
import functools
import os
import signal
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch

import libckpt.deepspeed

BATCH, MICRO = 32, 8


def batch_of(step, part, parts):
    """A part of a batch that is the same for any number of ranks."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 32, generator=generator).chunk(parts)[part]
    return inputs, inputs.square().mean(1, keepdim=True)


def train(options):
    # On CPU, DeepSpeed would compile a kernel here.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    accumulation = libckpt.deepspeed.accumulation_for(BATCH, MICRO, ranks)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
    )
    config = {
        "train_batch_size": BATCH,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {"stage": options.stage},
        "optimizer": {"type": "Adam", "params": {"lr": 0.003, "torch_adam": True}},
        "steps_per_print": 1000000,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    losses = []
    if not options.stock:
        libckpt.deepspeed.attach(
            engine, job=options.job, client_state=lambda: {"losses": losses}
        )
    _, state = engine.load_checkpoint(options.folder)
    losses += (state or {}).get("losses", [])
    if rank == 0:
        print(f"{ranks} rank(s), from step {engine.global_steps}", flush=True)
    while engine.global_steps < options.steps:
        total = torch.zeros(())
        for micro in range(accumulation):
            inputs, wanted = batch_of(
                engine.global_steps, micro * ranks + rank, accumulation * ranks
            )
            loss = torch.nn.functional.mse_loss(engine(inputs), wanted)
            engine.backward(loss)
            total += loss.detach() / accumulation / ranks
            if micro == accumulation - 1:
                torch.distributed.all_reduce(total)
                losses.append(round(total.item(), 5))
            engine.step()
        step = engine.global_steps
        if step % 10 == 0 and not options.stock:
            engine.save_checkpoint(options.folder, client_state={"losses": losses})
        if step == options.kill_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if rank == ranks - 1:
                print(f"rank {rank} is killed at step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        print("losses", *losses, flush=True)
    libckpt.deepspeed.wait(engine)
    torch.distributed.destroy_process_group()


def demo():
    from demo import Demo, is_same, title

    def shows(line):
        return "rank" in line.split("(")[0] or "from step" in line

    with Demo(__file__) as runs:
        run = functools.partial(runs.ranks, result="losses ", shows=shows)
        own = ("--folder", runs.scratch / "run", "--steps")
        title("two ranks, undisturbed")
        whole = run(2, "--job", "whole", "--folder", runs.scratch / "whole", "--steps", 30)
        title("two ranks, one is killed")
        is_right = is_same("losses are", whole, run(2, *own, 30, "--kill-at", 17))
        title("one rank goes on")
        more = run(1, *own, 40)
        title("stock DeepSpeed loads the folder")
        return is_same("losses are", more, run(1, *own, 40, "--stock")) and is_right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", action="store_true", help="kills and resumes itself")
    parser.add_argument("--job", default="deepspeed-trainer")
    parser.add_argument("--folder", help="where DeepSpeed's checkpoints go")
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill-at", type=int, default=0, help="the step at which a rank dies")
    parser.add_argument("--stock", action="store_true", help="without libckpt")
    given = parser.parse_args()
    if given.demo:
        sys.exit(0 if demo() else 1)
    train(given)
