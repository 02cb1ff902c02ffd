"""Tensors as the library sees them: an address, a type, a shape, a place.

Each framework has a Kind that handles its tensors. A type that safetensors has no name for is taken
as its bytes.
"""

import dataclasses
import math

from libckpt import errors
from libckpt.core import _frameworks

TYPES_MAX = 4096  # Remembered classes; more are made only by programs that make classes.

_kinds = {}  # By class of a value, the Kind that may handle it; None: it is no tensor.


@dataclasses.dataclass(frozen=True)
class TensorShape:
    """Stands for a tensor of a step, or asks for a new one. `dtype` as in messages and in
    `ckpt inspect`: "BF16"."""

    shape: tuple[int, ...]  # The whole tensor's, where ranks saved parts.
    dtype: str


class Kind:
    """How the tensors of one framework are handled. Those of numpy and torch show what else a Kind
    answers; what is here is so for tensors that lie on the host and belong to no optimizer."""

    key = ""  # In descriptions; the name of the framework's module.
    type_names = {}  # By the framework's own, the types' names in a checkpoint.
    may_grow = False  # Whether one in plain data may be of another shape when it is restored.

    def is_kind_of(self, type_of_value):
        """Whether values of the class may be such tensors."""
        raise NotImplementedError

    def is_one(self, value):
        """Whether a value of such a class is a tensor, and nothing more than that."""
        return True

    def part_of(self, name, tensor):
        """(this rank's part, where it lies, as Array.place() says) of a tensor that several ranks
        hold together; None: it is no such tensor."""
        return None

    def detached(self, tensor):
        return tensor

    def lies_plain(self, tensor):
        """Whether its bytes mean what they say."""
        return True

    def gpu_of(self, tensor):
        return -1

    def is_trained(self, tensor):
        return False

    def is_frozen(self, tensor):
        """Whether it is a parameter that is not trained now."""
        return False

    def is_same(self, one, other):
        return False

    def is_equal(self, one, other):
        """Whether two of one type and shape have the same bytes."""
        return True

    def counts_writes(self, tensor):
        return False


def kind_of(value):
    """The Kind of a tensor; None: the value is no tensor."""
    type_of_value = type(value)
    try:
        kind = _kinds[type_of_value]
    except KeyError:
        kind = _find_kind(type_of_value)
    return kind if kind is not None and kind.is_one(value) else None


def _find_kind(type_of_value):
    if len(_kinds) >= TYPES_MAX:
        _kinds.clear()
    kinds = [adapter.tensors for adapter in _frameworks.adapters() if adapter.tensors]
    found = [kind for kind in kinds if kind.is_kind_of(type_of_value)]
    _kinds[type_of_value] = found[0] if found else None
    return _kinds[type_of_value]


def is_tensor(value):
    return kind_of(value) is not None


def part_of(name, tensor):
    """As the Kind's; None, too, for what is no tensor."""
    kind = kind_of(tensor)
    return None if kind is None else kind.part_of(name, tensor)


def check(name, tensor):
    """Raises Unsupported, with what to do instead, for what cannot be copied as it lies."""
    kind_of(tensor).check(name, tensor)


def order_of(tensor):
    """Its dimensions in the order in which they lie in memory; (): it is contiguous. None: it is
    not dense."""
    kind = kind_of(tensor)
    if kind.is_contiguous(tensor):
        return ()
    strides = kind.strides(tensor)
    order = tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], i)))
    return order if kind.is_contiguous(kind.permuted(tensor, order)) else None


def order_if_any(tensor):
    """None: the type that it has now has none, and is refused when its bytes are looked for."""
    try:
        return order_of(tensor)
    except (RuntimeError, NotImplementedError, ValueError):
        return None


def as_stored(tensor):
    """The same memory with its dimensions as they lie, where it is dense."""
    order = order_of(tensor)
    return kind_of(tensor).permuted(tensor, order) if order else tensor


def as_described(stored, description):
    """The other way round."""
    order = description.get("order")
    if not order:
        return stored
    return kind_of(stored).permuted(stored, sorted(range(len(order)), key=order.__getitem__))


def stored_shape(description):
    shape = description["shape"]
    return [shape[i] for i in description.get("order", range(len(shape)))]


def describe(tensor, order=()):
    """All that is needed to make it again: a plain dictionary."""
    kind = kind_of(tensor)
    found = {kind.key: kind.type_text(tensor), "shape": list(tensor.shape)}
    return {**found, "order": list(order)} if order else found


def _kind_of_description(description):
    key = next(key for key in description if key not in ("t", "shape", "order", "part"))
    return _frameworks.adapter_of(key).tensors


def dress(content, description):
    """Bytes as the tensor that they were; the memory is shared."""
    kind = _kind_of_description(description)
    made = kind.from_bytes(content, description[kind.key], stored_shape(description))
    return as_described(made, description)


def described_form(description):
    """(type, shape) as a checkpoint has them, of a tensor by its describe()."""
    kind = _kind_of_description(description)
    return _form(kind, description[kind.key], description["shape"])


def stored_form(tensor):
    """The same of a tensor."""
    kind = kind_of(tensor)
    return _form(kind, kind.type_text(tensor), tensor.shape)


def _form(kind, type_text, shape):
    type_name, item_bytes = kind.named_type(type_text)
    return ("U8", (*shape, item_bytes)) if type_name is None else (type_name, tuple(shape))


def host_bytes(type_name, shape):
    """Memory for a tensor that has no place yet."""
    import numpy

    return numpy.empty(math.prod(shape) * type_bytes(type_name), dtype=numpy.uint8)


def made(form):
    """A new tensor of a TensorShape, on the host: of the framework that can send tensors between
    ranks, where the program has imported it, else of numpy."""
    kind = (_frameworks.rank_adapter() or _frameworks.adapter_of("numpy")).tensors
    text = next((own for own, name in kind.type_names.items() if name == form.dtype), None)
    if text is None:
        raise errors.Unsupported(f"a new tensor of {form.dtype}: {kind.key} has no such type")
    return kind.from_bytes(host_bytes(form.dtype, form.shape), text, form.shape)


def type_bytes(type_name):
    if type_name == "BOOL" or type_name.startswith("F8"):
        return 1
    return {"BF16": 2, "C64": 8}.get(type_name) or int(type_name[1:]) // 8


def is_writable(tensor):
    """Whether bytes may be written where it lies."""
    kind = kind_of(tensor)
    is_plain = kind.lies_plain(tensor) and not kind.why_not_writable(tensor)
    return is_plain and order_of(tensor) is not None


def why_not_writable(tensor):
    """Why no value can be copied to where it is; none: one can."""
    return kind_of(tensor).why_not_writable(tensor)


def is_trained(tensor):
    """Whether an optimizer may hold it, so that another one in its place would be of no use."""
    return kind_of(tensor).is_trained(tensor)


def memory_of(tensor):
    """The same for tensors that share memory, whatever part of it each of them has."""
    return kind_of(tensor).memory_of(tensor)


def names_by_memory(tensors):
    names = {}
    for name, tensor in tensors.items():
        names.setdefault(memory_of(tensor), []).append(name)
    return names


def is_same(one, other):
    """Whether they are one memory, so that there is nothing to copy."""
    if one is other:
        return True
    kind = kind_of(one)
    return kind is not None and kind is kind_of(other) and kind.is_same(one, other)


def copy(source, target):
    if not is_same(source, target):
        kind_of(target).copy(source, target)


def write_counts(tensors):
    """How often each of them was written; of tensors whose writes are counted, all of one kind."""
    return kind_of(tensors[0]).write_counts(tensors) if tensors else []


def address_of(tensor):
    return kind_of(tensor).address_of(tensor) if tensor.nbytes else 0
