"""Classic: a rank's files in a folder in Megatron's classic format, and how it is read again.

    iter_0000100/mp_rank_00[_000][_000]/model_optim_rng.pt   one for each model parallel rank
    iter_0000100/mp_rank_00[_000][_000]/distrib_optim.pt     the distributed optimizer's state

With `megatron.training` its own functions make and load what the files have. On a bare
megatron-core the ones here do, with the same keys; they call no collective to load, and do what
torch's AdamW needs besides.
"""

import copy
import inspect
import random

import numpy
import torch

from libckpt.errors import InvalidArgument
from libckpt.megatron import _optimizers, _parallel, _training
from libckpt.megatron._places import unwrapped

CHECKPOINT_VERSION = 3.0
MODEL, OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"


def folder_of(iteration):
    return f"iter_{iteration:07d}"


def rank_folder():
    place = _parallel.place()
    name = f"mp_rank_{place['tensor_rank']:02d}"
    if place["pipeline"] > 1:
        name += f"_{place['pipeline_rank']:03d}"
    if place["expert"] > 1:
        name += f"_{place['expert_rank']:03d}"
    return name


def files_of(iteration, model, optimizer, scheduler, flops):
    """By name in the folder, what this rank writes. The distributed optimizer gathers its state on
    one rank, as Megatron's own save does: all ranks call it."""
    folder, files = rank_folder(), {}
    distributed = [
        part for part in _optimizers.parts_of(optimizer) if _is_distributed(part)
    ] if optimizer is not None else []  # fmt: skip
    states = [_gathered(part) for part in distributed]
    if _parallel.expert_data_rank() == 0:
        state = _state_of(iteration, model, optimizer, scheduler)
        state["num_floating_point_operations_so_far"] = flops
        files[f"{folder}/{MODEL}"] = state
    if any(state is not None for state in states):
        is_chain = len(_optimizers.parts_of(optimizer)) > 1
        files[f"{folder}/{OPTIMIZER}"] = states if is_chain else states[0]
    return files


def _is_distributed(part):
    return hasattr(part, "get_parameter_state_dp_zero")


def _gathered(part):
    if getattr(part, "data_parallel_group_gloo", None) is None:
        return part.get_parameter_state_dp_zero(use_gloo_comm=False)
    return part.get_parameter_state_dp_zero()


def _state_of(iteration, model, optimizer, scheduler):
    checkpointing, args = _training.checkpointing(), _training.args()
    generate = getattr(checkpointing, "generate_state_dict", None)
    if generate is not None and args is not None:
        args = copy.copy(args)
        args.ckpt_format, args.use_dist_ckpt = "torch", False
        more = {"iteration": iteration, "use_dist_ckpt": False}
        known = inspect.signature(generate).parameters
        more = {name: value for name, value in more.items() if name in known}
        state = generate(args, model, optimizer, scheduler, rng_state(), **more)
        return {"iteration": iteration, **state}
    state = {"checkpoint_version": CHECKPOINT_VERSION, "iteration": iteration}
    if args is not None:
        state["args"] = args
    for number, chunk in enumerate(model):
        name = "model" if len(model) == 1 else f"model{number}"
        state[name] = chunk.state_dict_for_save_checkpoint()
    if optimizer is not None and not getattr(optimizer, "is_stub_optimizer", False):
        state["optimizer"] = optimizer.state_dict()
    if scheduler is not None:
        state["opt_param_scheduler"] = scheduler.state_dict()
    state["rng_state"] = rng_state()
    return state


def rng_state():
    has_gpu = torch.cuda.is_available()
    return [
        {
            "random_rng_state": random.getstate(),
            "np_rng_state": numpy.random.get_state(),
            "torch_rng_state": torch.get_rng_state(),
            "cuda_rng_state": torch.cuda.get_rng_state() if has_gpu else None,
            "rng_tracker_states": _training.rng_tracker_states(),
        }
    ]


# --- reading, on a bare megatron-core


def give(folder, model, optimizer, scheduler, strict):
    """Fills all of it from the folder. Returns (iteration, operations so far)."""
    path = folder / rank_folder()
    if not (path / MODEL).is_file():
        raise InvalidArgument(
            f"load {folder}: it has no {path.name}/{MODEL}: Megatron's classic format is for as "
            "many tensor and pipeline parallel ranks as saved it"
        )
    state = torch.load(path / MODEL, map_location="cpu", weights_only=False)
    for number, chunk in enumerate(model):
        name = "model" if len(model) == 1 else f"model{number}"
        unwrapped(chunk).load_state_dict(state[name], strict=strict)
    if optimizer is not None and "optimizer" in state:
        _give_optimizer(path, optimizer, state["optimizer"])
    if scheduler is not None and "opt_param_scheduler" in state:
        scheduler.load_state_dict(state["opt_param_scheduler"])
    if "rng_state" in state:
        give_rng(state["rng_state"][0])
    return state["iteration"], state.get("num_floating_point_operations_so_far", 0)


def _give_optimizer(path, optimizer, state):
    parts = _optimizers.parts_of(optimizer)
    states = [state] if len(parts) == 1 else state
    gathered = None
    for number, (part, own) in enumerate(zip(parts, states, strict=True)):
        if not _is_distributed(part):
            part.load_state_dict(own)
            continue
        if gathered is None:
            gathered = torch.load(path / OPTIMIZER, mmap=True, weights_only=False)
        keys, has_step = _optimizers.state_of([part])
        _optimizers.make_state([part], keys, has_step)
        give_settings(part, own, has_step)
        _give_gathered(part, gathered[number] if len(parts) > 1 else gathered)


def give_settings(part, own, has_step):
    """From its state dict, which the folder has; torch's optimizers count steps in their state."""
    groups = own["optimizer"]["param_groups"]
    steps = {group.get("step") for group in groups} - {None}
    if has_step:
        groups = [{k: v for k, v in group.items() if k != "step"} for group in groups]
    settings = {"groups": groups, "step": steps.pop() if steps else None,
                "scaler": own.get("grad_scaler")}  # fmt: skip
    _optimizers.give_settings([part], [settings])


def _give_gathered(part, state):
    """This rank's stretches of the buffers, of which the file has all without their padding."""
    owned = {id(each.parameter): each for each in _optimizers.owned_by(part)}
    for number, by_dtype in enumerate(part.gbuf_ranges):
        for dtype, buckets in by_dtype.items():
            begin = 0
            for bucket, ranges in zip(part.buffers[number].buckets, buckets, strict=True):
                for parameter, found in ranges["param_map"].items():
                    inside = found["gbuf_world_in_bucket"]
                    own = slice(begin + inside.start, begin + inside.end)
                    each = owned[id(parameter)]
                    with torch.no_grad():
                        for key, tensor in {**each.tensors(), "param": each.main}.items():
                            tensor.copy_(state[number][dtype][key][own])
                begin += bucket.numel_unpadded


def give_rng(state):
    random.setstate(state["random_rng_state"])
    numpy.random.set_state(state["np_rng_state"])
    torch.set_rng_state(state["torch_rng_state"])
    if state["cuda_rng_state"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda_rng_state"])
    _training.give_rng_tracker_states(state["rng_tracker_states"])
