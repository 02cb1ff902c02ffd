"""Places: where this rank's parts of the model lie in the whole tensors, as Megatron says.

`sharded_state_dict()` names each tensor, its whole shape and this rank's part of it. From that each
part gets a name that is the same on all ranks, whatever their number:

    decoder.layers.mlp.linear_fc2.weight[7]     the layers have one key in Megatron: the number is
                                                that of the layer
    decoder.layers.mlp.linear_fc1.weight[7]#1   the second half of a gated layer, whose halves are
                                                divided among the ranks one by one

A stretch of a parameter's memory, as the distributed optimizer divides it, is a stretch of the
whole tensor, too, if the parameter is divided by rows. If it is divided by columns, among T tensor
parallel ranks, it is one of the tensor [T, elements of a rank], which is named `NAME@T`.
"""

import collections
import dataclasses
import math

from libckpt.core._arrays import Array
from libckpt.errors import Unsupported
from libckpt.megatron import _parallel


@dataclasses.dataclass
class Place:
    """One box of a whole tensor, that is one stretch of the memory of its owner."""

    name: str
    shape: tuple  # The whole tensor's.
    offset: tuple
    box: tuple  # Shape of the part.
    begin: int  # Its first element in the owner.
    copy: int  # No other rank's number.
    copies: tuple  # (rank, number) among the data parallel ranks, which hold the same.
    columns: int  # The dimension in which tensor parallel ranks divide it; 0: rows, or none.

    @property
    def count(self):
        return math.prod(self.box)

    @property
    def parts(self):
        """How many ranks divide the columns."""
        return self.shape[self.columns] // self.box[self.columns] if self.columns else 1

    def array(self, prefix, tensor):
        """The box itself; `tensor` is the memory of the owner."""
        part = tensor.view(-1)[self.begin : self.begin + self.count].view(self.box)
        return Array(
            prefix + self.name, part, global_shape=self.shape, offset=self.offset,
            **self._numbers(True),
        )  # fmt: skip

    def _numbers(self, has_copies):
        """Data parallel ranks divide the capture of what they all hold."""
        rank, number = self.copies
        if has_copies and number > 1:
            return {"copy": rank, "copies": number}
        return {"copy": self.copy or None}

    def stretch(self, prefix, begin, memory, has_copies=False):
        """The elements of the box from `begin` on, which `memory` has, in the flattened owner.
        `has_copies`: so have the other data parallel ranks."""
        begin -= self.begin
        numbers = self._numbers(has_copies)
        if not self.columns:
            first = 0  # The place of the box's first element.
            for at, size in zip(self.offset, self.shape, strict=True):
                first = first * size + at
            return Array(
                prefix + self.name, memory, global_shape=self.shape, flat=first + begin,
                **numbers,
            )  # fmt: skip
        first = self.offset[self.columns] // self.box[self.columns] * self.count
        return Array(
            f"{prefix}{self.name}@{self.parts}", memory, global_shape=(self.parts, self.count),
            flat=first + begin, **numbers,
        )  # fmt: skip


def places_of(model, rank):
    """(by id of the parameter or buffer: the tensor and its places; by key: modules that save an
    object besides their tensors)."""
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensorFactory

    tensors, modules, seen = {}, {}, {}
    for chunk in map(unwrapped, model):
        for key, entry in _entries("", chunk.sharded_state_dict()):
            if isinstance(entry, ShardedObject):
                module = _module_of(chunk, key)
                if module is not None:
                    modules[entry.unique_key] = module
                continue
            built = [entry]
            if isinstance(entry, ShardedTensorFactory):
                parts = (part for _, part in _entries("", entry.build()))
                built = [part for part in parts if hasattr(part, "local_shape")]
            owner = entry.data
            if owner.numel() and owner.data_ptr() in seen:  # Tied: it has another name already.
                tensors.setdefault(id(owner), (owner, seen[owner.data_ptr()]))
                continue
            places = _places_of_one(owner, built, rank)
            tensors[id(owner)] = (owner, places)
            seen[owner.data_ptr()] = places
    _check_names(places for _, places in tensors.values())
    return tensors, modules


def unwrapped(chunk):
    """Without Megatron's wrappers, whose names an optimizer's state has not either."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    if not hasattr(chunk, "sharded_state_dict"):
        raise Unsupported(
            f"the model is a {type(chunk).__name__}, which has no sharded_state_dict(): libckpt "
            "takes from it which part of each tensor this rank has"
        )
    return chunk


def _module_of(chunk, key):
    """That whose get_extra_state() the object is."""
    try:
        return chunk.get_submodule(key.removesuffix("_extra_state").rstrip("."))
    except AttributeError:
        return None


def _entries(key, state):
    """(key, leaf) of all leaves of nested dictionaries and lists."""
    if isinstance(state, dict):
        for name, part in state.items():
            yield from _entries(f"{key}.{name}" if key else name, part)
    elif isinstance(state, (list, tuple)):
        for number, part in enumerate(state):
            yield from _entries(f"{key}.{number}", part)
    elif state is not None:
        yield key, state


def _places_of_one(owner, built, rank):
    """Those of a parameter; a factory divides one into several."""
    by_name = {}
    for part in built:
        if getattr(part, "flattened_range", None) is not None:
            raise Unsupported(f'tensor "{part.key}": it is a flattened range already')
        by_name.setdefault(_name_of(part), []).append(part)
    columns = _columns_of(owner)
    places = []
    for name, parts in by_name.items():
        for number, part in enumerate(parts):
            places.append(_place(name, number, parts, part, owner, rank, columns))
    return places


def _name_of(part):
    """Dimensions that only count layers or experts are a part of the name."""
    numbers = part.global_offset[: part.prepend_axis_num]
    return part.key + "".join(f"[{number}]" for number in numbers)


def _columns_of(owner):
    """As Megatron marks a parameter whose columns are divided, also among one rank."""
    is_divided = getattr(owner, "tensor_model_parallel", False)
    return max(0, getattr(owner, "partition_dim", 0)) if is_divided else 0


def _place(name, number, parts, part, owner, rank, columns):
    shape = list(part.global_shape[part.prepend_axis_num :])
    offset = list(part.global_offset[part.prepend_axis_num :])
    box = tuple(part.local_shape)
    if len(parts) > 1:  # One after the other, each divided alike: each is a tensor of its own.
        name = f"{name}#{number}"
        block = shape[0] // len(parts) if shape else 0
        if not shape or shape[0] % len(parts) or offset[0] // block != number:
            raise Unsupported(
                f'tensor "{part.key}": this rank has {len(parts)} parts of it, which are no equal '
                "blocks of rows"
            )
        shape[0], offset[0] = block, offset[0] - number * block
    if not part.data.is_contiguous() or tuple(part.data.shape) != box:
        raise Unsupported(f'tensor "{part.key}": its part is not contiguous')
    divided = [at for at, size in enumerate(box) if size != shape[at]]
    inner = [at for at in divided if at > 0 and math.prod(box[:at]) > 1]
    if len(divided) > 1 or (inner and inner != [1]):
        raise Unsupported(
            f'tensor "{part.key}": [{", ".join(map(str, box))}] of '
            f"[{', '.join(map(str, shape))}] is divided in a way that libckpt does not know"
        )
    columns = inner[0] if inner else columns if columns == 1 and len(shape) > 1 else 0
    first = (part.data.data_ptr() - owner.data_ptr()) // owner.element_size()
    # A number of its own, and never 0: what one rank alone has as a whole, a layer of a pipeline,
    # would be that rank's own and no part that others may ask for.
    copies = _parallel.copies(is_expert=not getattr(owner, "allreduce", True))
    return Place(name, tuple(shape), tuple(offset), box, first, rank + 1, copies, columns)


def _check_names(all_places):
    places = {id(place): place for places in all_places for place in places}.values()
    counts = collections.Counter(place.name for place in places)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise Unsupported(
            f'tensor "{twice[0]}": this rank has several parts of it under one name'
        )


class Relaid:
    """Columns that other numbers of tensor parallel ranks saved, on their way into a stretch.

    It asks for the rows that the stretch lies in, of the ranks whose columns it needs.
    """

    def __init__(self, prefix, place, begin, memory, saved_by):
        import torch

        self._place, self._memory = place, memory
        rows, width = place.box[0], place.box[1]
        inner = math.prod(place.box[2:])
        saved_width = place.shape[1] // saved_by
        begin -= place.begin
        self._row = begin // (width * inner)
        end = -(-(begin + memory.numel()) // (width * inner))
        left = place.offset[1] // saved_width
        right = -(-(place.offset[1] + width) // saved_width)
        self._first = begin - self._row * width * inner
        self._column = place.offset[1] - left * saved_width
        self._sizes = (right - left, end - self._row, saved_width, inner)
        self._buffer = torch.empty(
            (right - left, (end - self._row) * saved_width * inner),
            dtype=memory.dtype, device=memory.device,
        )  # fmt: skip
        self.array = Array(
            f"{prefix}{place.name}@{saved_by}", self._buffer,
            global_shape=(saved_by, rows * saved_width * inner),
            offset=(left, self._row * saved_width * inner), copy=place.copy or None,
        )  # fmt: skip

    def fill(self):
        """When the array has its bytes."""
        ranks, rows, width, inner = self._sizes
        whole = self._buffer.view(ranks, rows, width, inner).transpose(0, 1)
        whole = whole.reshape(rows, ranks * width, inner)
        own = whole[:, self._column : self._column + self._place.box[1]].reshape(-1)
        self._memory.copy_(own[self._first : self._first + self._memory.numel()])


def stretches(places, begin, memory):
    """(place, its first element, its memory) of each place that has a part of a stretch."""
    end = begin + memory.numel()
    for place in places:
        first, last = max(begin, place.begin), min(end, place.begin + place.count)
        if first < last:
            yield place, first, memory[first - begin : last - begin]


