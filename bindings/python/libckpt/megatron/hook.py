"""Hook: one line in pretrain_gpt.py, and Megatron's own training loop uses libckpt.

    import libckpt.megatron.hook

- `load_checkpoint` takes the newest of memory and folders.
- Every iteration is captured in memory (LIBCKPT_SAVE_MEM_INTERVAL), where the training loop has a
  function for the end of an iteration, `checkpoint_and_decide_exit`.
- `save_checkpoint` in the classic format (`--ckpt-format torch`) goes through libckpt: captured at
  once, on storage later, whole or not at all. All other formats are Megatron's to write.
- NVRx's LocalCheckpointManager (`--non-persistent-ckpt-type local`) is libckpt's, if NVRx is there.

Megatron has no seat for the first three, so functions of its modules are replaced, each only if it
has the parameters that are used here. With LIBCKPT_DISABLE=1 nothing is replaced.
"""

import functools
import importlib
import inspect
import logging
import sys

from libckpt import megatron
from libckpt.core import _settings
from libckpt.megatron import _training
from libckpt.megatron._easy import EasyCkpt
from libckpt.megatron._local_manager import LocalCheckpointManager

logger = logging.getLogger("libckpt")

FOUR = ("model", "optimizer", "opt_param_scheduler")
NVRX = "nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager"


def install():
    """Replaces each function; one that is not as expected is named, and left."""
    if _settings.is_true(_settings.configured("disable")):
        return
    module = _imported("megatron.training.checkpointing", "megatron.checkpointing")
    if module is None:
        logger.error("libckpt: there is no megatron.training: the hook does nothing")
        return
    training = _imported("megatron.training.training", "megatron.training")
    _replace(module, "load_checkpoint", FOUR, _load)
    _replace(module, "save_checkpoint", ("iteration", *FOUR), _save)
    if not _replace(training, "checkpoint_and_decide_exit", ("iteration", *FOUR), _end_iteration):
        logger.warning(
            "libckpt: this Megatron's training loop has no checkpoint_and_decide_exit: call "
            "libckpt.megatron.save_checkpoint_if_needed after each iteration, else iterations are "
            "captured in memory only when they are saved to storage"
        )
    manager = _imported(NVRX)
    if manager is not None:
        manager.LocalCheckpointManager = LocalCheckpointManager


def _imported(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _replace(module, name, wanted, function):
    """Under all names that Megatron's modules have for it. Returns whether it was done."""
    stock = getattr(module, name, None)
    if stock is None or hasattr(stock, "libckpt_stock"):
        return stock is not None
    signature = inspect.signature(stock)
    missing = [parameter for parameter in wanted if parameter not in signature.parameters]
    if missing:
        logger.error("libckpt: %s.%s has no %s: it is left as it is",
                     module.__name__, name, ", ".join(missing))  # fmt: skip
        return False

    @functools.wraps(stock)
    def replaced(*arguments, **options):
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        return function(stock, given)

    replaced.libckpt_stock = stock
    for other in [m for n, m in sys.modules.items() if n.partition(".")[0] == "megatron"]:
        if getattr(other, name, None) is stock:
            setattr(other, name, replaced)
    setattr(module, name, replaced)
    return True


def _easy():
    """The one that the program initialized, or else one by Megatron's arguments. Storage is written
    when Megatron asks for it."""
    if megatron._current is None:
        interval = _settings.configured("save_mem_interval") or 1
        megatron._current = EasyCkpt(interval, 0, 0)
    return megatron._current


def _load(stock, given):
    options = dict(given.arguments)
    model, optimizer, scheduler = (options.pop(name) for name in FOUR)
    if options.get("skip_load_to_model_and_opt"):
        return stock(*given.args, **given.kwargs)
    load_arg, strict = options.pop("load_arg", "load"), options.pop("strict", True)
    found = _easy().load(model, optimizer, scheduler, load_arg, strict, **options)
    return found if _training.counts_operations() else found[0]


def _save(stock, given):
    options = given.arguments
    is_classic = getattr(_training.args(), "ckpt_format", "torch") == "torch"
    is_other = options.get("non_persistent_ckpt") or options.get("release")
    easy = _easy()
    if not is_classic or is_other or easy.folders is None:
        return stock(*given.args, **given.kwargs)
    iteration, *objects = (options[name] for name in ("iteration", *FOUR))
    flops = options.get("num_floating_point_operations_so_far", 0)
    easy.capture(iteration, *objects, flops)
    easy.store(iteration, *objects, flops)
    return None


def _end_iteration(stock, given):
    options = given.arguments
    iteration, *objects = (options[name] for name in ("iteration", *FOUR))
    _easy().capture(iteration, *objects, options.get("num_floating_point_operations_so_far", 0))
    return stock(*given.args, **given.kwargs)


install()
