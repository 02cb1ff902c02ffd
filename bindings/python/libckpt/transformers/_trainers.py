"""Trainers: of which kind one is, and which one calls."""

import inspect
import sys

import transformers

VERSION_MIN = 5
PREPARES = {  # Where a sharded Trainer resumes: methods, and what they are given.
    "_init_training_state": ["max_steps", "num_update_steps_per_epoch", "num_train_epochs",
                             "resume_from_checkpoint", "trial"],
    "_prepare_for_training": ["max_steps", "train_dataloader", "resume_from_checkpoint"],
}  # fmt: skip


def is_sharded(trainer):
    """Whether DeepSpeed or FSDP divides its model, which then exists in train() only."""
    return trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled


def problem_of(trainer):
    """Why libckpt leaves the Trainer as it is; none: it knows such ones."""
    if int(transformers.__version__.partition(".")[0]) < VERSION_MIN:
        return (
            f"Transformers {transformers.__version__} is installed, whose Trainer is another one: "
            f"its steps are not captured in memory; libckpt wants {VERSION_MIN}.0 or newer"
        )
    problem = _problem_of_sharded(trainer) if is_sharded(trainer) else None
    if problem is not None:
        return (
            f"{problem}: its steps are not captured in memory, and Transformers writes its "
            "checkpoints itself"
        )
    return None


def _problem_of_sharded(trainer):
    missing = [name for name, given in PREPARES.items() if _given(trainer, name) != given]
    parallelism = getattr(trainer.accelerator, "parallelism_config", None)
    if missing:
        return (
            f"DeepSpeed or FSDP shards it, and the Trainer of Transformers "
            f"{transformers.__version__} has no {missing[0]} that libckpt knows"
        )
    if trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2:
        return "FSDP1 shards it, whose flat parameters libckpt does not know; FSDP2 is known"
    if getattr(parallelism, "sp_enabled", False):
        return "DeepSpeed divides its sequences, which libckpt.transformers does not know"
    if trainer.args.save_on_each_node:
        return "it is sharded, and save_on_each_node wants the same files on every node"
    return None


def _given(trainer, name):
    """The names of the method's parameters; none: there is no such method."""
    method = getattr(trainer, name, None)
    return None if method is None else list(inspect.signature(method).parameters)


def is_stock(trainer, name):
    """Whether the class has Transformers' own method: a subclass may have replaced it."""
    return getattr(type(trainer), name, None) is getattr(transformers.Trainer, name, None)


def calling_trainer():
    """The Trainer that calls on_init_end.

    Transformers hands its callbacks the model, the state, the arguments and more, and none of it
    refers to the Trainer; yet where to resume from is asked in train() before the first event. So
    the caller's frame is searched. `TrainerWrapper` needs none of this.
    """
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, transformers.Trainer):
            return caller
        frame = frame.f_back
    return None
