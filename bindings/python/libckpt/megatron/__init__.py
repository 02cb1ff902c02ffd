"""libckpt for Megatron-LM and megatron-core: the three functions of EasyCkpt.

    from libckpt.megatron import initialize_easyckpt, load_checkpoint, save_checkpoint_if_needed

    initialize_easyckpt(save_mem_interval=1, save_storage_interval=500, max_ckpt_num=5)
    iteration = load_checkpoint(model, optimizer, opt_param_scheduler)
    save_checkpoint_if_needed(iteration, model, optimizer, opt_param_scheduler)   # after each step

Steps are captured in memory that outlives the process. Another data parallel size, and another
tensor parallel size, go on from there. Folders on storage are in Megatron's formats.
"""

import atexit

from libckpt import errors
from libckpt._init import with_keywords
from libckpt.megatron import _training
from libckpt.megatron._easy import EasyCkpt
from libckpt.megatron._local_manager import LocalCheckpointManager

__all__ = [
    "LocalCheckpointManager",
    "initialize_easyckpt",
    "load_checkpoint",
    "save_checkpoint_if_needed",
]

_current = None


@with_keywords
def initialize_easyckpt(
    save_mem_interval, save_storage_interval, max_ckpt_num, log_file_path=None, *, job=None,
    save_dir=None, load_dir=None, dir=None, ckpt_format="torch", **options,
):  # fmt: skip
    """Call it once on each rank, before load_checkpoint.

    save_mem_interval: iterations between captures in memory, or a time as "60s"; 0: none.
    save_storage_interval: iterations between folders on storage; 0: none.
    max_ckpt_num: how many of the folders that libckpt published stay; 0: all.
    job: the name of the run; by default LIBCKPT_JOB, or made from save_dir.
    save_dir, load_dir: by default Megatron's --save and --load.
    dir: for checkpoints of libckpt's own, which any number of ranks restores when memory is lost;
        none: memory only. save_storage_interval and max_ckpt_num hold for them, too.
    ckpt_format: that of the folders, "torch" (the classic one) or "torch_dist".
    All others are those of `libckpt.init`.
    """
    global _current
    if _current is not None:
        _current.let_go()  # It may be the same job, as of a cell that runs again.
    _current = EasyCkpt(
        save_mem_interval, save_storage_interval, max_ckpt_num, log_file_path, job=job,
        save_dir=save_dir, load_dir=load_dir, dir=dir, ckpt_format=ckpt_format, **options,
    )  # fmt: skip
    return _current


def current():
    if _current is None:
        raise errors.InvalidArgument(
            "libckpt.megatron: initialize_easyckpt(...) was not called: call it on each rank, "
            "before the first load_checkpoint or save_checkpoint_if_needed"
        )
    return _current


def save_checkpoint_if_needed(
    iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far=0, *,
    metrics=None,
):  # fmt: skip
    """Call it on each rank after each iteration: captures in memory, and saves to storage, when
    that is due. `metrics`: numbers by name, as the loss, or a function that returns them, which is
    called if memory is due; `keep_best` goes by those of rank 0."""
    current().save(
        iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far,
        metrics,
    )  # fmt: skip


def load_checkpoint(
    model, optimizer, opt_param_scheduler, load_arg="load", strict=True, concat=False, *,
    source=None, **more,
):  # fmt: skip
    """Fills all of it from the newest step of memory, peers and storage. Returns the iteration, or
    what Megatron's own function of this version returns. All ranks call it.

    concat: for EasyCkpt's users, who say with it that the number of data parallel ranks has
    changed. It need not be given: another number is noticed.
    source: from "memory" alone, or from "storage": the folders, and `dir`.
    """
    del concat
    found = current().load(
        model, optimizer, opt_param_scheduler, load_arg, strict, source, **more
    )
    return found if _training.counts_operations() else found[0]


@atexit.register
def _leave():
    """The steps in memory stay, as after a death: a next process may go on from them."""
    global _current
    if _current is not None:
        _current.abandon()
        _current = None
