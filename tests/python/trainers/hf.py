"""A Trainer of Transformers over a tiny GPT-2, to be killed at any step.

hf.py OUTPUT KIND ARGUMENTS: KIND is stock, wrapper, callback, added (the same once the Trainer was
made: it resumes where stock Transformers would), overriding (a subclass with a save of
its own), reading (a callback that wants the folder in on_save), pushing (to the hub), forgetful
(what is in memory cannot be restored) or unfinalized (a Transformers whose training ends without
asking); ARGUMENTS is JSON for TrainingArguments, besides "resume", what train() is called with,
"width" and "dropout", of the model, "ranks", which are real ones also when it is 1, "nodes": the
environment of each rank, where each is on a node of its own, "again": a second training by the same
Trainer, and what Hold says, of the last training. With "deepspeed" or "fsdp" among them the model
is sharded. Says "made STEP" and, at the end, each loss, and the digests
of the losses and of the weights; of several ranks, rank 0 says it.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import sys

import doors
import torch
import transformers

transformers.utils.logging.set_verbosity_error()

PATIENCE = 60.0  # For a Slot, and for a step to be committed.


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


class Hold(transformers.TrainerCallback):
    """Holds a training until it is killed: after the step "hold", or after "hold_after" steps since
    it began. Says "held STEP", the newest that memory has by then. It is the last of the callbacks,
    so that the capture of the step has begun. "settles": all folders are there before it holds."""

    def __init__(self, trainer, hold=0, hold_after=0, settles=False):
        self._trainer, self._step, self._steps, self._settles = trainer, hold, hold_after, settles
        self._session = None  # Without memory.

    def on_train_begin(self, args, state, control, **_):
        self._step = self._step or state.global_step + self._steps
        memories = [c._memory for c in self._trainer.callback_handler.callbacks
                    if hasattr(c, "_memory")]  # fmt: skip
        self._session = memories[0].session if memories and memories[0] is not None else None
        if self._session is not None:
            self._session.save_checkpoint_if_needed = self._save

    def _save(self, step, *items, **options):
        """For the last step it waits for a Slot, so that it is not skipped."""
        patience = PATIENCE if step >= self._step else 0
        return self._session.save(step, *items, patience, **options)

    def on_step_begin(self, args, state, control, **_):
        if state.global_step != self._step:
            return
        latest = None if self._session is None else self._bring_to_memory()
        if self._settles:
            from libckpt.core.files import _publish_queue

            _publish_queue.settle(wait=True)
        print("held", latest, flush=True)
        signal.pause()

    def _bring_to_memory(self):
        """The newest step in memory."""
        self._session.finish_capture()
        with contextlib.suppress(Exception):  # "held" says so.
            self._session.wait(self._step, "committed", PATIENCE)
        return self._session.latest


class Read(transformers.TrainerCallback):
    def on_save(self, args, state, control, **_):
        folder = pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"
        print("read", state.global_step, sorted(path.name for path in folder.iterdir()))


class Overriding(transformers.Trainer):
    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        (pathlib.Path(output_dir) / "mine.txt").write_text("mine")


class Pushing(transformers.Trainer):
    def _push_from_checkpoint(self, folder):
        found = sorted(path.name for path in pathlib.Path(folder).iterdir())
        print("pushed", self.state.global_step, found, flush=True)

    def push_to_hub(self, *_, **__):
        pass


KINDS = {"overriding": Overriding, "pushing": Pushing}


def make_trainer(output, kind, **options):
    transformers.set_seed(7)
    dropout = options.pop("dropout", 0.1)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=options.pop("width", 64), vocab_size=64, n_positions=16,
        bos_token_id=0, eos_token_id=0, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout,
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
    arguments = transformers.TrainingArguments(output_dir=output, **settings)
    if arguments.fsdp:
        doors.pretend_gpus(arguments.distributed_state)
    trainer = KINDS.get(kind, transformers.Trainer)(
        model=transformers.GPT2LMHeadModel(config), args=arguments,
        train_dataset=Texts(), eval_dataset=Texts(), callbacks=callbacks,
    )  # fmt: skip
    if kind in ("wrapper", "overriding", "reading", "pushing", "forgetful", "unfinalized"):
        import libckpt.transformers

        if kind == "unfinalized":
            libckpt.transformers.Callback._finalize = lambda _, stock, *arguments: stock(*arguments)
        trainer = libckpt.transformers.TrainerWrapper(trainer)
    if kind == "added":
        import libckpt.transformers

        trainer.add_callback(libckpt.transformers.Callback())
    if kind == "pushing":
        trainer.args.push_to_hub = True  # Now: the constructor would look for the hub.
    if kind == "forgetful":
        forget(trainer)
    return trainer


def forget(trainer):
    def restore(*_, **__):
        raise ModuleNotFoundError("there is no module of that name")

    (callback,) = [c for c in trainer.callback_handler.callbacks if hasattr(c, "_memory")]
    callback._memory._open()
    callback._memory.session._restorer.restore = restore


def whole_weights(trainer):
    """By name, in fp32 as the optimizer has them. All ranks call it."""
    if trainer.is_deepspeed_enabled:
        from deepspeed.utils import safe_get_full_fp32_param

        parts = dict(trainer.model.named_parameters())
        wholes = {name: safe_get_full_fp32_param(part) for name, part in parts.items()}
        return {name: parts[name] if whole is None else whole for name, whole in wholes.items()}
    parts = trainer.model.state_dict()
    return {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in parts.items()}


def results(trainer):
    # The second to last line of a run has its timings, which differ.
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history
              if "loss" in entry]  # fmt: skip
    weights = hashlib.sha256()
    for part in whole_weights(trainer).values():
        weights.update(part.detach().cpu().numpy().tobytes())
    print("each", *(loss for _, loss in losses))
    return hashlib.sha256(repr(losses).encode()).hexdigest(), weights.hexdigest()


def become_rank(count, nodes):
    """Forks the ranks; returns in each of them, and lets the first one speak."""
    doors.become_rank(count, nodes)
    if os.environ["RANK"] != "0":
        sys.stdout = open(os.devnull, "w")


def train(output, kind, resume, options):
    is_trained_again = options.pop("again", False)
    holds = {name: options.pop(name) for name in ("hold", "hold_after", "settles")
             if name in options}  # fmt: skip
    trainer = make_trainer(output, kind, **options)
    hold = Hold(trainer, **holds)
    if kind == "added" and not list(pathlib.Path(output).glob("checkpoint-*")):
        resume = None  # Stock Transformers raises.
    if holds and not is_trained_again:
        trainer.add_callback(hold)
    trainer.train(resume_from_checkpoint=resume)
    if is_trained_again:
        trainer.add_callback(hold)
        trainer.train()
    if kind == "unfinalized":
        found = pathlib.Path(output).glob("checkpoint-*")
        print("at the end of train()", [int(path.name.partition("-")[2]) for path in found])
    return results(trainer)


def prepare_deepspeed():
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # noqa: F401

    # It compiles a kernel.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def main(output, kind, options):
    options = json.loads(options)
    ranks, nodes = options.pop("ranks", 0), options.pop("nodes", ())
    if ranks > 0:
        become_rank(ranks, nodes)
        options["ddp_backend"] = "gloo"
    if "deepspeed" in options:
        prepare_deepspeed()
    resume = options.pop("resume", None)
    if kind == "stock":
        doors.uninstall()
    losses, weights = train(output, kind, resume, options)
    print("losses", losses)
    print("weights", weights, flush=True)
    if ranks > 0:
        # Without an end of Python: threads of torch that are left would terminate the process.
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
