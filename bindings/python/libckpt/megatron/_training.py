"""Training: questions to `megatron.training`, which a bare megatron-core does not have."""

import inspect
import sys

PROGRESS = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")


def args():
    """Megatron's arguments; None: nobody parsed any."""
    for name in ("megatron.training.global_vars", "megatron.training", "megatron"):
        ask = getattr(sys.modules.get(name), "get_args", None)
        if ask is not None:
            try:
                return ask()
            except AssertionError:  # They are not set.
                return None
    return None


def checkpointing():
    """Megatron's module that saves and loads; None: it is not imported."""
    for name in ("megatron.training.checkpointing", "megatron.checkpointing"):
        if name in sys.modules:
            return sys.modules[name]
    return None


def stock(name):
    """Megatron's own function, also when the hook has put another in its place; None: it has none.
    """
    found = getattr(checkpointing(), name, None)
    return getattr(found, "libckpt_stock", found)


def counts_operations():
    """Whether this version's load_checkpoint also returns a number of operations."""
    save = stock("save_checkpoint")
    name = "num_floating_point_operations_so_far"
    return save is not None and name in inspect.signature(save).parameters


def known(function, options):
    """Those that this version of it takes."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}


def progress():
    """The numbers that Megatron keeps among its arguments."""
    found = args()
    return {name: getattr(found, name) for name in PROGRESS if hasattr(found, name)}


def give_progress(numbers):
    found = args()
    if found is None:
        return
    for name in PROGRESS:
        if name in numbers:
            setattr(found, name, numbers[name])
    if "consumed_train_samples" in numbers:
        from megatron.core import num_microbatches_calculator as calculator

        if getattr(calculator, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None) is not None:
            calculator.update_num_microbatches(numbers["consumed_train_samples"])


def rng_tracker():
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    return get_cuda_rng_tracker()


def rng_tracker_states():
    return dict(rng_tracker().get_states())


def give_rng_tracker_states(states):
    if states:
        rng_tracker().set_states(states)
