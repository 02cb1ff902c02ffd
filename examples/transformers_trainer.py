"""The Trainer of Transformers, with one line more.

    python examples/transformers_trainer.py --dir DIRECTORY     a small GPT-2, made here
    python examples/transformers_trainer.py --demo              kills and resumes itself
    torchrun --standalone --nproc-per-node 2 examples/transformers_trainer.py --zero 2 --dir DIR
                                                                sharded by DeepSpeed: the same line

Start it, kill it, start it again: it goes on after its newest step, from memory. Its folders
`checkpoint-N` are those of Transformers itself, which resumes from them without libckpt, too.
"""

import argparse
import hashlib
import os
import sys

import torch
import transformers

import libckpt.transformers


class Texts(torch.utils.data.Dataset):
    """Numbers that follow from each other, for want of a text."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = (torch.arange(16) * (index % 7 + 1) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


class Tell(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}", flush=True)


def sharding(stage):
    """Arguments of a Trainer for this stage of ZeRO, on CPUs; 0: it is not sharded."""
    if stage == 0:
        return {}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed  # noqa: F401

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # It compiles a kernel.
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {"ddp_backend": "gloo", "deepspeed": {
        "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
        **dict.fromkeys(sizes, "auto"),
    }}  # fmt: skip


def make_trainer(directory, steps, stage):
    transformers.utils.logging.set_verbosity_error()
    transformers.set_seed(1)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=64, n_positions=16,
                                     bos_token_id=0, eos_token_id=0)  # fmt: skip
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(
            output_dir=directory, max_steps=steps, save_steps=20, save_total_limit=2,
            logging_steps=1, per_device_train_batch_size=8, learning_rate=1e-3,
            use_cpu=True, report_to=[], disable_tqdm=True, **sharding(stage),
        ),
        train_dataset=Texts(),
        callbacks=[Tell()],
    )  # fmt: skip


def train(directory, steps, is_stock, stage):
    trainer = make_trainer(directory, steps, stage)
    if is_stock:
        found = transformers.trainer_utils.get_last_checkpoint(directory)
        trainer.train(resume_from_checkpoint=found)
    else:
        trainer = libckpt.transformers.TrainerWrapper(trainer)  # The line.
        trainer.train(resume_from_checkpoint=True)
    digest = hashlib.sha256()
    for part in trainer.model.state_dict().values():
        digest.update(part.numpy().tobytes())
    if trainer.is_world_process_zero():
        print(f"final weights {digest.hexdigest()[:16]}", flush=True)


def demo(script, steps):
    from demo import Demo, compare, title

    with Demo(script) as runs:
        title("stock Transformers, and nobody is killed")
        whole = ("--dir", runs.scratch / "whole", "--steps", steps, "--stock")
        expected = runs.whole(*whole)

        title("with libckpt, killed twice: the second time its memory is lost as well")
        wrapped = ("--dir", runs.scratch / "wrapped", "--steps", steps)
        runs.killed(*wrapped, after=(25, 35))
        runs.killed(*wrapped, after=(45, 55))
        runs.lose_memory()
        runs.killed(*wrapped, after=(65, 75))

        title("stock Transformers goes on from the folders that libckpt left")
        compare(expected, runs.whole(*wrapped, "--stock"))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dir", default="transformers-trainer", help="output_dir of the Trainer")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stock", action="store_true", help="without libckpt")
    parser.add_argument("--zero", type=int, default=0, choices=[0, 1, 2], help="stage of ZeRO")
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Sums in one order: a resumed run ends bit for bit like a whole one.
    if arguments.demo:
        demo(__file__, arguments.steps)
    else:
        train(arguments.dir, arguments.steps, arguments.stock, arguments.zero)


if __name__ == "__main__":
    main()
