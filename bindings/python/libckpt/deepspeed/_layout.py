"""Layout: where a DeepSpeed engine keeps its weights and optimizer state, as parts of parameters.

    ZeRO 1, 2, BF16   a flat fp32 partition for each group, cut from the group's parameters in a row
    ZeRO 3            a flat fp32 partition for each sub group, with a piece of each parameter
    ZeRO 0            whole tensors, the same on all ranks: each rank captures a range of each

In each case a Flat is one tensor of the optimizer. Its parts say which elements of which parameter
lie in it, so any other number of ranks, and any other stage, finds what it wants by name. Padding
belongs to no parameter and is not captured. Low-precision weights are not captured either:
DeepSpeed makes them from the fp32 weights after each step, and so does a restore.
"""

import collections
import dataclasses

import torch
import torch.distributed as dist

from libckpt import Array, errors

BUCKET = 16 << 20  # Elements that ranks hand round at once.

Part = collections.namedtuple("Part", "name shape begin at count")  # In the parameter, the tensor.


@dataclasses.dataclass
class Flat:
    tensor: torch.Tensor
    group: int  # Its index among the optimizer's groups.
    parts: list  # Those that this rank captures.
    kind: str = "master"  # Or "frozen", which has no state.
    name: str = ""  # Its parameter's, if that is a whole one on all ranks.

    @property
    def is_whole(self):
        return bool(self.name)


class Layout:
    """`flats`, and how a step that was restored reaches the low-precision weights."""

    def __init__(self, engine):
        self._engine = engine
        self.optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
        self.group = engine.seq_data_parallel_group
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.names = engine.param_names
        self.of_model = self.of_parts = None  # Digests, once they are made.
        self.buffers = None  # Where those of the module are, likewise.
        self._cached = None, ()
        make = _kind_of(engine.optimizer)
        self.flats = [flat for flat in make(self) if flat.tensor.numel()]
        self.trained = _trained(self)  # By id of a parameter, its group of the optimizer.
        self.flats += self._frozen()

    @property
    def zero(self):
        """DeepSpeed's wrapper of the optimizer, or the optimizer itself."""
        return self._engine.optimizer

    def arrays(self):
        """This rank captures and fills these. The list is the same one until a tensor moves."""
        states = [self.state_tensors(flat) for flat in self.flats]
        key = [
            (flat.tensor.data_ptr(), *((name, part.data_ptr()) for name, part in state.items()))
            for flat, state in zip(self.flats, states)
        ]
        if self._cached[0] != key:
            arrays = []
            for flat, state in zip(self.flats, states):
                named = {flat.kind: flat.tensor, **{f"state/{k}": v for k, v in state.items()}}
                for prefix, tensor in named.items():
                    arrays += _arrays_of(prefix, tensor, flat.parts)
            self._cached = key, arrays
        return self._cached[1]

    def state_tensors(self, flat):
        """By key, the state that has an element for each one of the flat tensor."""
        return {
            key: value
            for key, value in self.optimizer.state.get(flat.tensor, {}).items()
            if _is_alike(key, value, flat.tensor)
        }

    def state_values(self, flat):
        """By key, all other state, such as the number of steps."""
        state = self.optimizer.state.get(flat.tensor, {})
        return {k: v for k, v in state.items() if not _is_alike(k, v, flat.tensor)}

    def spread(self):
        """Gives the weights that are not captured their values. All ranks call it."""
        with torch.no_grad():
            wholes = [flat for flat in self.flats if flat.is_whole]
            states = [state for flat in wholes for state in self.state_tensors(flat).values()]
            self._hand_round([*(flat.tensor for flat in wholes), *states])
            _refresh(self)

    def _hand_round(self, tensors):
        """Each rank has its range of each tensor, and gets the others'."""
        for source in range(self.ranks if self.ranks > 1 else 0):
            for bucket in _buckets(tensors, source, self.ranks):
                row = torch.cat(bucket)
                dist.broadcast(row, dist.get_global_rank(self.group, source), group=self.group)
                for part, piece in zip(row.split([p.numel() for p in bucket]), bucket):
                    piece.copy_(part)

    def _frozen(self):
        """For parameters that no optimizer has."""
        for parameter in self._engine.module.parameters():
            if id(parameter) in self.trained:
                continue
            name = self.names[parameter]
            if hasattr(parameter, "ds_id"):
                part = self.partition_of(parameter, 0)
                if part.count:
                    yield Flat(parameter.ds_tensor.data, 0, [part], "frozen")
            elif parameter.numel():
                yield self.whole(name, parameter, 0, "frozen")

    def whole(self, name, tensor, group, kind="master"):
        if not tensor.is_contiguous():
            raise errors.Unsupported(f'parameter "{name}" is not contiguous')
        begin, end = _range(tensor.numel(), self.rank, self.ranks)
        part = Part(name, tuple(tensor.shape), begin, begin, end - begin)
        return Flat(tensor, group, [part] if part.count else [], kind, name)

    def partition_of(self, parameter, at):
        """This rank's part of a parameter of ZeRO 3."""
        size = parameter.partition_numel()
        begin = min(self.rank * size, parameter.ds_numel)
        count = min(size, parameter.ds_numel - begin)
        return Part(self.names[parameter], tuple(parameter.ds_shape), begin, at, count)

    def cut(self, tensor, group, parameters, offsets):
        """A flat partition of parameters that lie at `offsets` in the whole row."""
        size = tensor.numel()
        own, parts = self.rank * size, []
        for parameter, offset in zip(parameters, offsets):
            begin = max(offset, own)
            end = min(offset + parameter.numel(), own + size)
            if begin < end:
                shape, name = tuple(parameter.shape), self.names[parameter]
                parts.append(Part(name, shape, begin - offset, begin - own, end - begin))
        return Flat(tensor, group, parts)


def _of_stage_1_2(layout):
    zero = layout.zero
    for i, tensor in enumerate(zero.single_partition_of_fp32_groups):
        parameters = zero.round_robin_bit16_groups[i]
        offsets = getattr(zero, "round_robin_bit16_offsets", None)
        yield layout.cut(tensor, i, parameters, offsets[i] if offsets else _in_a_row(parameters))


def _of_bf16(layout):
    zero = layout.zero
    for i, tensor in enumerate(zero.fp32_groups_flat_partition):
        yield layout.cut(tensor, i, zero.bf16_groups[i], _in_a_row(zero.bf16_groups[i]))


def _of_stage_3(layout):
    zero = layout.zero
    for i, tensor in enumerate(zero.fp32_partitioned_groups_flat):
        parts, at = [], 0
        for parameter in zero.fp16_groups[i]:
            part = layout.partition_of(parameter, at)
            parts += [part] if part.count else []
            at += parameter.partition_numel()
        yield Flat(tensor, zero.sub_group_to_group_id[i], parts)


def _of_copies(layout):
    """Low-precision weights with an fp32 copy of each."""
    zero = layout.zero
    for i, (parameters, copies) in enumerate(zip(zero.fp16_groups, zero.fp32_groups)):
        for parameter, copy in zip(parameters, copies):
            yield layout.whole(layout.names[parameter], copy, i)


def _of_parameters(layout):
    for i, group in enumerate(layout.optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.requires_grad:
                yield layout.whole(layout.names[parameter], parameter, i)


KINDS = {  # By the field that only such an optimizer has.
    "single_partition_of_fp32_groups": _of_stage_1_2,
    "fp32_groups_flat_partition": _of_bf16,
    "fp32_partitioned_groups_flat": _of_stage_3,
    "fp32_groups": _of_copies,
}
GROUPS = ("bit16_groups", "bf16_groups", "fp16_groups")  # Where they have their parameters.


def _kind_of(zero):
    made = [make for field, make in KINDS.items() if hasattr(zero, field)]
    if not made and not isinstance(zero, torch.optim.Optimizer):
        raise errors.Unsupported(f"its optimizer is a {type(zero).__name__}")
    return made[0] if made else _of_parameters


def _trained(layout):
    zero, found = layout.zero, {}
    fields = [field for field in GROUPS if hasattr(zero, field)]
    groups = getattr(zero, fields[0]) if fields else [g["params"] for g in zero.param_groups]
    for number, group in enumerate(groups):
        own = getattr(zero, "sub_group_to_group_id", {}).get(number, number)
        found |= {id(parameter): own for parameter in group if parameter.requires_grad}
    return found


def _refresh(layout):
    """The low-precision weights, as DeepSpeed makes them at the end of a step."""
    zero = layout.zero
    if hasattr(zero, "fp32_partitioned_groups_flat"):
        for i, tensor in enumerate(zero.fp32_partitioned_groups_flat):
            zero.fp16_partitioned_groups_flat[i].data.copy_(tensor.data)
            zero._unflatten_partitioned_parameters(i)
        zero.checkpoint_event_epilogue()
    elif hasattr(zero, "update_lp_params"):
        zero.update_lp_params()
        if layout.optimizer.state:
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()
    elif hasattr(zero, "fp32_groups"):
        for parameters, copies in zip(zero.fp16_groups, zero.fp32_groups):
            for parameter, copy in zip(parameters, copies):
                parameter.data.copy_(copy.data)


def _arrays_of(prefix, tensor, parts):
    row = tensor.detach().view(-1)
    for name, shape, begin, at, count in parts:
        yield Array(f"{prefix}/{name}", row[at : at + count], global_shape=shape or (1,),
                    flat=begin)  # fmt: skip


def _is_alike(key, value, tensor):
    return torch.is_tensor(value) and key != "step" and value.shape == tensor.shape


def _in_a_row(parameters):
    offsets = [0]
    for parameter in parameters:
        offsets.append(offsets[-1] + parameter.numel())
    return offsets[:-1]


def _range(count, rank, ranks):
    return count * rank // ranks, count * (rank + 1) // ranks


def _buckets(tensors, source, ranks):
    """The ranges of rank `source`, in lists of one type that are not too long."""
    bucket, left = [], BUCKET
    for tensor in tensors:
        begin, end = _range(tensor.numel(), source, ranks)
        if begin == end:
            continue
        if bucket and (left < end - begin or bucket[0].dtype != tensor.dtype):
            yield bucket
            bucket, left = [], BUCKET
        bucket.append(tensor.detach().view(-1)[begin:end])
        left -= end - begin
    if bucket:
        yield bucket
