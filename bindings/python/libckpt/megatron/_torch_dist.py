"""Torch_dist: a folder in Megatron's distributed format, by Megatron's own writer and reader.

    iter_0000100/common.pt, .metadata, metadata.json, __RANK_N.distcp

The distributed optimizer's state is in it parameter by parameter, so that any tensor, pipeline and
data parallel sizes load it. All ranks call both functions.
"""

import pathlib

import torch

from libckpt.megatron import _classic, _optimizers, _parallel, _training
from libckpt.megatron._places import unwrapped

MARK = "metadata.json"  # Megatron writes it last.


def is_one(folder):
    return (pathlib.Path(folder) / MARK).is_file()


def save(folder, iteration, model, optimizer, scheduler, flops):
    """Rank 0 has made the folder."""
    from megatron.core import dist_checkpointing

    metadata = _metadata(optimizer)
    state = {
        "checkpoint_version": _classic.CHECKPOINT_VERSION, "iteration": iteration,
        "num_floating_point_operations_so_far": flops,
        **_sharded(model, optimizer, metadata, is_loading=False), "rng_state": _rng_state(),
    }  # fmt: skip
    if _training.args() is not None:
        state["args"] = _training.args()
    if scheduler is not None:
        state["opt_param_scheduler"] = scheduler.state_dict()
    more = _training.known(dist_checkpointing.save, {"content_metadata": metadata})
    dist_checkpointing.save(state, str(folder), **more)


def _metadata(optimizer):
    """Which of Megatron's forms the optimizer's state has."""
    parts = _optimizers.parts_of(optimizer) if optimizer is not None else []
    has_gloo = all(getattr(part, "data_parallel_group_gloo", None) is not None for part in parts)
    return {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True,
            "distrib_optim_fully_reshardable_mem_efficient": has_gloo}  # fmt: skip


def _sharded(model, optimizer, metadata, is_loading):
    state = {}
    for number, chunk in enumerate(model):
        state[_model_name(model, number)] = unwrapped(chunk).sharded_state_dict()
    if optimizer is not None and _optimizers.parts_of(optimizer):
        chunks = dict(state) if len(model) > 1 else state["model"]
        state["optimizer"] = optimizer.sharded_state_dict(
            chunks, is_loading=is_loading, metadata=metadata
        )
    return state


def _model_name(model, number):
    return "model" if len(model) == 1 else f"model{number}"


def _rng_state():
    """As Megatron has it: one for each tensor and pipeline parallel rank."""
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    place = _parallel.place()
    return ShardedObject(
        "rng_state", _classic.rng_state(), (place["pipeline"], place["tensor"]),
        (place["pipeline_rank"], place["tensor_rank"]), replica_id=_parallel.data_rank(),
    )  # fmt: skip


def give(folder, model, optimizer, scheduler, strict):
    """Fills all of it from the folder. Returns (iteration, operations so far)."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.serialization import load_sharded_metadata

    parts = _optimizers.parts_of(optimizer) if optimizer is not None else []
    keys, has_step = _optimizers.state_of(parts)
    _optimizers.make_state(parts, keys, has_step)  # Else Megatron makes it, for other optimizers.
    wanted = _sharded(model, optimizer, _metadata(optimizer), is_loading=True)
    rng = _rng_state()
    if rng.unique_key in load_sharded_metadata(str(folder)):
        wanted["rng_state"] = rng  # Else there were other numbers of ranks.
    state = dist_checkpointing.load(wanted, str(folder))
    for number, chunk in enumerate(model):
        unwrapped(chunk).load_state_dict(state[_model_name(model, number)], strict=strict)
    for number, part in enumerate(parts):
        own = state["optimizer"] if len(parts) == 1 else state["optimizer"][number]
        if not hasattr(part, "get_parameter_state_dp_zero"):
            part.load_state_dict(own)
            continue
        _classic.give_settings(part, own, has_step)
        _give_parameters(part, own["param_state"])
    if scheduler is not None and "opt_param_scheduler" in state:
        scheduler.load_state_dict(state["opt_param_scheduler"])
    if "rng_state" in wanted:
        _classic.give_rng(state["rng_state"][0])
    return state["iteration"], state.get("num_floating_point_operations_so_far", 0)


def _give_parameters(part, states):
    """This rank's stretches of them. Megatron numbers them as they lie in its buffers."""
    numbers = {}
    for buffer in part.buffers:
        for parameter in buffer.param_index_map:
            numbers[id(parameter)] = len(numbers)
    for owned in _optimizers.owned_by(part):
        found = states[numbers[id(owned.parameter)]]
        with torch.no_grad():
            for key, tensor in {**owned.tensors(), "param": owned.main}.items():
                whole = found["fp32_param" if key == "param" and key not in found else key]
                tensor.copy_(whole.flatten()[owned.begin : owned.begin + tensor.numel()])
