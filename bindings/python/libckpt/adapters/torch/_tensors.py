"""Torch's tensors, as the core sees tensors."""

import zlib

import torch

from libckpt.adapters.torch import _distributed
from libckpt.core import _tensors
from libckpt.errors import Unsupported

TYPE_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64",
    "int64": "I64", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip

_texts = {}  # By type: to make the text is slow.


def text_of(kind):
    text = _texts.get(kind)
    if text is None:
        text = _texts[kind] = str(kind).removeprefix("torch.")
    return text


def type_of(text):
    kind = getattr(torch, text, None)
    if not isinstance(kind, torch.dtype):
        raise Unsupported(
            f"a saved tensor is of the type {text}, which torch {torch.__version__} does not have: "
            "restore it with the version that saved it, or a newer one"
        )
    return kind


def is_tensor(value):
    return isinstance(value, torch.Tensor)


PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


class Tensors(_tensors.Kind):
    key = "torch"
    type_names = TYPE_NAMES

    def is_kind_of(self, type_of_value):
        return issubclass(type_of_value, torch.Tensor)

    def part_of(self, name, tensor):
        return _distributed.part_of(name, tensor) if _distributed.is_distributed(tensor) else None

    def check(self, name, tensor):
        problem = _problem_of(tensor)
        if problem:
            raise Unsupported(f'tensor "{name}": {problem}')

    def type_text(self, tensor):
        return text_of(tensor.dtype)

    def named_type(self, text):
        known = TYPE_NAMES.get(text)
        return (known, 0) if known else (None, type_of(text).itemsize)

    def is_contiguous(self, tensor):
        return tensor.is_contiguous()

    def strides(self, tensor):
        return tensor.stride()

    def permuted(self, tensor, order):
        return tensor.permute(order)

    def from_bytes(self, content, text, shape):
        kind = type_of(text)
        if content.nbytes == 0:
            return torch.empty(shape, dtype=kind, device="cpu")
        return torch.from_numpy(content).view(kind).reshape(shape)

    def why_not_writable(self, tensor):
        if tensor.layout != torch.strided:
            return f"its layout is {tensor.layout}: give it as to_dense()"
        if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
            return "it is expanded, so that many of its elements are one: give its clone()"
        return ""

    def is_trained(self, tensor):
        return tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)

    def is_frozen(self, tensor):
        return isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad

    def memory_of(self, tensor):
        return tensor.untyped_storage().data_ptr() or id(tensor)

    def is_same(self, one, other):
        one, other = _distributed.memory_of(one), _distributed.memory_of(other)
        is_there = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
        return is_there and one.shape == other.shape and one.numel() > 0

    def copy(self, source, target):
        _distributed.memory_of(target).detach().copy_(_distributed.memory_of(source))

    def is_equal(self, one, other):
        one, other = (part.detach().contiguous().reshape(-1).view(torch.uint8)
                      for part in (one, other))  # fmt: skip
        return torch.equal(one, other.to(one.device))

    # --- for views

    def detached(self, tensor):
        return tensor.detach()

    def lies_plain(self, tensor):
        is_strided = tensor.layout is torch.strided
        return is_strided and not tensor.is_conj() and not tensor.is_neg()

    def buffer_like(self, tensor):
        with torch.inference_mode(False):  # Else only that mode could write it again.
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def fits(self, kept, tensor):
        is_alike = kept.dtype == tensor.dtype and kept.shape == tensor.shape
        return is_alike and kept.device == tensor.device

    def address_of(self, tensor):
        return tensor.data_ptr()

    def gpu_of(self, tensor):
        return tensor.device.index or 0 if tensor.device.type == "cuda" else -1

    # --- for the judge of captures

    def counts_writes(self, tensor):
        return not tensor.is_inference()

    def write_counts(self, tensors):
        return [tensor._version for tensor in tensors]

    def checksum(self, tensor):
        return zlib.crc32(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def _problem_of(tensor):
    # A model may have a hundred thousand of the two plain classes, which are none of the others.
    return _problem_of_bytes(tensor) if type(tensor) in PLAIN else _problem_of_class(tensor)


def _problem_of_class(tensor):
    if torch.nn.parameter.is_lazy(tensor):
        return "it is not initialized yet: make a forward pass before the first save"
    if type(tensor).__name__ == "FakeTensor":
        return "it is a fake tensor, which has no data: save the real one"
    if _distributed.is_distributed(tensor):
        return "it is a distributed tensor, which only an item may hold: save its to_local()"
    if hasattr(tensor, "__tensor_flatten__") and not tensor.is_nested:
        return (
            f"it is a {type(tensor).__name__}, which is made of other tensors: save those, of its "
            "__tensor_flatten__()"
        )
    return _problem_of_bytes(tensor)


def _problem_of_bytes(tensor):
    if tensor.is_nested:
        return "it is a nested tensor: save the tensors of its unbind()"
    if tensor.layout != torch.strided:
        return f"its layout is {tensor.layout}: convert it with to_dense()"
    if tensor.is_quantized:
        return "it is quantised: save its int_repr(), scale and zero point"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"it lies on the device {tensor.device}: move it to cpu or cuda"
    return None
