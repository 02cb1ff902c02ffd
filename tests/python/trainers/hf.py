"""A Trainer of Transformers over a tiny GPT-2, to be killed at any step.

hf.py OUTPUT KIND ARGUMENTS: KIND is stock, wrapper, callback, overriding (a subclass with a save of
its own) or reading (a callback that wants the folder in on_save); ARGUMENTS is JSON for
TrainingArguments, and "resume" what train() is called with. Says "made STEP" and, at the end, the
digests of the losses and of the weights.
"""

import hashlib
import json
import pathlib
import sys

import torch
import transformers

transformers.utils.logging.set_verbosity_error()


class Texts(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(0, 64, (96, 16), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Say(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print("made", state.global_step, flush=True)


class Read(transformers.TrainerCallback):
    def on_save(self, args, state, control, **_):
        folder = pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"
        print("read", state.global_step, sorted(path.name for path in folder.iterdir()))


class Overriding(transformers.Trainer):
    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        (pathlib.Path(output_dir) / "mine.txt").write_text("mine")


def make_trainer(output, kind, **options):
    transformers.set_seed(7)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=64, vocab_size=64, n_positions=16,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    settings = {"max_steps": 30, "save_steps": 5, "logging_steps": 1, "save_total_limit": 2,
                "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True,
                "learning_rate": 1e-3, "disable_tqdm": True} | options  # fmt: skip
    callbacks = [Say()]
    if kind == "callback":
        import libckpt.transformers

        callbacks.append(libckpt.transformers.Callback())
    if kind == "reading":
        callbacks.append(Read())
    trainer = (Overriding if kind == "overriding" else transformers.Trainer)(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(output_dir=output, **settings),
        train_dataset=Texts(), eval_dataset=Texts(), callbacks=callbacks,
    )  # fmt: skip
    if kind in ("wrapper", "overriding", "reading"):
        import libckpt.transformers

        trainer = libckpt.transformers.TrainerWrapper(trainer)
    return trainer


def results(trainer):
    # The second to last line of a run has its timings, which differ.
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history
              if "loss" in entry]  # fmt: skip
    weights = hashlib.sha256()
    for part in trainer.model.state_dict().values():
        weights.update(part.cpu().numpy().tobytes())
    return hashlib.sha256(repr(losses).encode()).hexdigest(), weights.hexdigest()


def main(output, kind, options):
    options = json.loads(options)
    resume = options.pop("resume", None)
    if kind == "stock":
        sys.modules["libckpt"] = None  # As where it is not installed: importing it fails.
    trainer = make_trainer(output, kind, **options)
    trainer.train(resume_from_checkpoint=resume)
    losses, weights = results(trainer)
    print("losses", losses)
    print("weights", weights, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
