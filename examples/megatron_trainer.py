"""megatron-core's GPT, that goes on after its ranks were killed, also with other ranks.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node=2 --max-restarts=3 examples/megatron_trainer.py --dir DIR
    python examples/megatron_trainer.py --demo

The lines with libckpt are those in train(). The demo trains with two data parallel ranks three
times: undisturbed; with a rank that is killed, which torchrun starts again; and on from there, from
memory, with a single rank. It compares the losses of
the first two. Without a GPU it makes megatron-core run on CPUs, which has nothing to do with
libckpt.
"""

import argparse
import contextlib
import functools
import os
import signal
import sys
import warnings

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from libckpt.megatron import initialize_easyckpt, load_checkpoint, save_checkpoint_if_needed

BATCH, LENGTH, VOCABULARY = 8, 16, 64


class CudaToCpu(TorchFunctionMode):
    """Megatron-core asks for GPUs by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        if function is torch.Tensor.cuda:
            return args[0]
        found = function(*args, **kwargs)
        is_type = function is torch.Tensor.type and isinstance(found, str)
        return found.replace("torch.", "torch.cuda.", 1) if is_type else found


def run_on_cpus():
    warnings.filterwarnings("ignore")
    torch.cuda.current_device = lambda: "cpu"
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    CudaToCpu().__enter__()


def make_model():
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True,
        hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
    )  # fmt: skip
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="LayerNorm"),
                     vocab_size=VOCABULARY, max_sequence_length=LENGTH)  # fmt: skip
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), model
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=3e-3, min_lr=3e-4, use_distributed_optimizer=True),
        [model],
    )
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=3e-3, min_lr=3e-4, lr_warmup_steps=5, lr_decay_steps=200,
        lr_decay_style="cosine", start_wd=0.01, end_wd=0.01, wd_incr_steps=200,
        wd_incr_style="constant",
    )  # fmt: skip
    return model, optimizer, scheduler


def train_one_step(step, model, optimizer, scheduler):
    """The loss; the data is that of the step, whatever the number of ranks."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    own = tokens.chunk(dist.get_world_size())[dist.get_rank()]
    positions = torch.arange(LENGTH).expand_as(own)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    model.zero_grad_buffer()
    optimizer.zero_grad()
    loss = model(own, positions, mask, labels=(own * 5 + 1) % VOCABULARY).mean()
    loss.backward()
    model.finish_grad_sync()
    optimizer.step()
    scheduler.step(1)
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(options):
    from megatron.core import parallel_state

    if not torch.cuda.is_available():
        run_on_cpus()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel(1)
    torch.manual_seed(0)
    model, optimizer, scheduler = make_model()

    initialize_easyckpt(save_mem_interval=1, save_storage_interval=20, max_ckpt_num=2,
                        save_dir=options.dir)  # fmt: skip
    step = load_checkpoint([model], optimizer, scheduler)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} rank(s), from step {step}", flush=True)
    while step < options.steps:
        step += 1
        loss = train_one_step(step, model, optimizer, scheduler)
        save_checkpoint_if_needed(step, [model], optimizer, scheduler)
        if step == options.kill_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if dist.get_rank() == dist.get_world_size() - 1:
                print(f"rank {dist.get_rank()} is killed at step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 0:
        print(f"loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


def demo():
    from demo import Demo, is_same, title

    with Demo(__file__) as runs:
        run = functools.partial(runs.ranks, result="loss ")
        directory = runs.scratch / "run"
        title("two ranks, undisturbed")
        whole = run(2, "--dir", runs.scratch / "whole", "--steps", 40)
        title("two ranks, one is killed")
        killed = run(2, "--dir", directory, "--steps", 40, "--kill-at", 27)
        is_right = is_same("loss is", whole, killed)
        title("one rank goes on, from memory")
        run(1, "--dir", directory, "--steps", 50)
        print("folders:", *sorted(path.name for path in directory.glob("iter_*")))
    return is_right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", action="store_true", help="kills and resumes itself")
    parser.add_argument("--dir", default="megatron-trainer", help="where iter_N folders go")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill-at", type=int, default=0, help="the step at which a rank dies")
    given = parser.parse_args()
    if given.demo:
        sys.exit(0 if demo() else 1)
    train(given)
