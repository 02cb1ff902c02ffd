"""DeepSpeed ZeRO training that goes on after a rank was killed, also with fewer ranks.

    torchrun --standalone --nproc-per-node=2 examples/deepspeed_trainer.py --folder DIR
    python examples/deepspeed_trainer.py --demo

The demo trains with two ranks undisturbed; then it kills a rank, and torchrun starts both again,
which go on from memory; then a single rank goes on with twice the gradient accumulation; at last
stock DeepSpeed loads the folder. It compares the losses.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch

import libckpt.deepspeed

BATCH, MICRO = 32, 8
# Else ranks that torchrun starts again may find the addresses of the dead ones in its Store.
RESTARTS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


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


def run(ranks, *arguments):
    """Trains under torchrun and shows what it said; returns the losses."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3",
               f"--nproc-per-node={ranks}", __file__, *map(str, arguments)]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", **RESTARTS, **os.environ}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    lines = done.stdout.splitlines()
    shown = [line for line in lines if "rank" in line.split("(")[0] or "from step" in line]
    print(*shown, sep="\n", flush=True)
    found = next(line for line in lines if line.startswith("losses "))
    return [float(loss) for loss in found.split()[1:]]


def demo():
    with tempfile.TemporaryDirectory(prefix="libckpt-demo-") as scratch:
        os.environ["LIBCKPT_RUNTIME_DIR"] = f"{scratch}/runtime"
        stop = [pathlib.Path(libckpt.__file__).parent / "bin" / "ckpt", "stop", "--no-flush"]
        given = ("--folder", f"{scratch}/run", "--steps")
        try:
            print("== two ranks, undisturbed")
            whole = run(2, "--job", "whole", "--folder", f"{scratch}/whole", "--steps", 30)
            print("== two ranks, one is killed")
            same = run(2, *given, 30, "--kill-at", 17) == whole
            print("the losses are", "the same" if same else "DIFFERENT")
            print("== one rank goes on")
            more = run(1, *given, 40)
            print("== stock DeepSpeed loads the folder")
            stock = run(1, *given, 40, "--stock")
            print("the losses are", "the same" if stock == more else "DIFFERENT")
        finally:
            subprocess.run(stop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return same and stock == more


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
