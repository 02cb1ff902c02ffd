"""Universal: DeepSpeed's universal layout, written from the engine without a conversion.

    DIR/TAG/zero/PARAMETER/{fp32,exp_avg,exp_avg_sq,step}.pt   each a whole tensor
    DIR/TAG/zero/optimizer_state.pt                            groups, and what all ranks have
    DIR/TAG/*_model_states.pt                                  as save_checkpoint writes it
    DIR/latest_universal                                       last

The ranks put each parameter together in turn, and each writes its share of them.
"""

import torch
import torch.distributed as dist

SHARDED = ("base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups",
           "fp32_flat_groups", "optimizer_state_dict")  # fmt: skip
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # By size in bytes.


def write(layout, fileset):
    """Writes the files of this rank under `zero/`. All ranks call it."""
    own = {}
    for flat in layout.flats:
        named = {"fp32": flat.tensor, **layout.state_tensors(flat)}
        for part in flat.parts if flat.kind == "master" else ():
            own[part.name] = (flat, part, named)
    writer = 0
    for name, shape, keys in _in_order(layout):
        flat, part, named = own.get(name, (None, None, {}))
        for key, dtype in keys.items():
            row = _row(layout, shape, dtype, named.get(key), part, writer)
            if layout.rank == writer:
                torch.save({"param": row.view(shape)}, fileset.path(f"zero/{name}/{key}.pt"))
        if layout.rank == writer:
            steps = _steps(layout, name)
            if steps is not None:
                torch.save(steps, fileset.path(f"zero/{name}/step.pt"))
        writer = (writer + 1) % layout.ranks
    if layout.rank == 0:
        torch.save(_common(layout), fileset.path("zero/optimizer_state.pt"))


def _in_order(layout):
    """(name, shape, types by key) of each parameter that is trained, the same on all ranks."""
    types = {}
    for flat in layout.flats:
        if flat.kind == "master" and flat.group not in types:
            state = layout.state_tensors(flat).items()
            types[flat.group] = {"fp32": flat.tensor.dtype, **{k: v.dtype for k, v in state}}
    for parameter, name in layout.names.items():
        if id(parameter) in layout.trained:
            shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
            yield name, shape, types[layout.trained[id(parameter)]]


def _row(layout, shape, dtype, tensor, part, writer):
    """The whole parameter on rank `writer`, to the last bit: its parts are added as integers."""
    row = torch.zeros(torch.Size(shape).numel(), dtype=dtype)
    if tensor is not None:
        piece = tensor.detach().view(-1)[part.at : part.at + part.count]
        row[part.begin : part.begin + part.count].copy_(piece)
    whole = row.view(INTEGERS[row.element_size()])
    if dist.get_backend(layout.group) == "nccl":
        there = whole.to(layout.flats[0].tensor.device)
    else:
        there = whole
    dist.reduce(there, dist.get_global_rank(layout.group, writer), group=layout.group)
    if there is not whole:
        whole.copy_(there)
    return row


def _steps(layout, name):
    """The number of steps of the parameter, where the optimizer counts them in its state."""
    if hasattr(layout.zero, "fp32_partitioned_groups_flat"):
        return None  # Stage 3 reads it from optimizer_state.pt.
    return next((values["step"] for values in map(layout.state_values, layout.flats)
                 if "step" in values), None)  # fmt: skip


def _common(layout):
    state = layout.zero.state_dict()
    common = {key: value for key, value in state.items() if key not in SHARDED}
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": [number]}
        for number, group in enumerate(layout.optimizer.param_groups)
    ]
    common["param_groups"] = groups
    first = {}
    for flat in layout.flats:
        first = first or layout.state_values(flat)
    common["optimizer_state_dict"] = {"state": {0: first}, "param_groups": groups}
    return common
