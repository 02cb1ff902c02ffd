"""A stand-in for megatron.training, which wants GPUs: the functions of its 0.16 that libckpt asks
for, or replaces, with their signatures, in modules of their names.
"""

import pathlib
import sys
import types

import torch
import torch.distributed as dist

TRACKER = "latest_checkpointed_iteration.txt"


def install(directory, load):
    """`load(directory)` loads the newest folder, and returns its iteration."""
    args = types.SimpleNamespace(
        save=str(directory), load=str(directory), ckpt_format="torch", finetune=False,
        consumed_train_samples=0, use_dist_ckpt=False,
    )  # fmt: skip

    def get_args():
        return args

    def generate_state_dict(args, model, optimizer, opt_param_scheduler, rng_state, iteration=None,
                            optim_sd_kwargs=None, rerun_state=None):  # fmt: skip
        assert args.ckpt_format == "torch"
        return {
            "args": args, "checkpoint_version": 3.0, "iteration": iteration,
            "model": model[0].state_dict_for_save_checkpoint(), "optimizer": optimizer.state_dict(),
            "opt_param_scheduler": opt_param_scheduler.state_dict(), "rng_state": rng_state,
        }  # fmt: skip

    def save_checkpoint(
        iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far,
        checkpointing_context=None, pipeline_rank=None, non_persistent_ckpt=False,
        train_data_iterator=None, preprocess_common_state_dict_fn=None, release=False,
    ):  # fmt: skip
        print("stock save", iteration, flush=True)
        folder = pathlib.Path(args.save) / f"iter_{iteration:07d}" / "mp_rank_00"
        folder.mkdir(parents=True, exist_ok=True)
        optimizer.save_parameter_state(str(folder / "distrib_optim.pt"))
        if dist.get_rank() == 0:
            state = generate_state_dict(args, model, optimizer, opt_param_scheduler, [], iteration)
            torch.save(state, folder / "model_optim_rng.pt")
            (pathlib.Path(args.save) / TRACKER).write_text(str(iteration))
        dist.barrier()

    def load_checkpoint(model, optimizer, opt_param_scheduler, load_arg="load", strict=True,
                        checkpointing_context=None, skip_load_to_model_and_opt=False):  # fmt: skip
        print("stock load", flush=True)
        if not (pathlib.Path(args.load) / TRACKER).exists():
            return 0, 0
        return load(pathlib.Path(args.load)), 0

    def checkpoint_and_decide_exit(
        model, optimizer, opt_param_scheduler, iteration, num_floating_point_operations_so_far,
        checkpointing_context, train_data_iterator,
    ):  # fmt: skip
        if iteration % 2 == 0:
            training.save_checkpoint(iteration, model, optimizer, opt_param_scheduler,
                                     num_floating_point_operations_so_far)  # fmt: skip
        return False

    package = _module("megatron.training", get_args=get_args)
    package.__path__ = []
    _module("megatron.training.global_vars", get_args=get_args)
    _module("megatron.training.checkpointing", save_checkpoint=save_checkpoint,
            load_checkpoint=load_checkpoint, generate_state_dict=generate_state_dict)  # fmt: skip
    training = _module("megatron.training.training", save_checkpoint=save_checkpoint,
                       load_checkpoint=load_checkpoint,
                       checkpoint_and_decide_exit=checkpoint_and_decide_exit)  # fmt: skip
    return training, args


def _module(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    return module
