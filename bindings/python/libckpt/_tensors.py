"""Tensors of torch and numpy as the library sees them: an address, a type, a shape, a place.

A type that safetensors has no name for is taken as its bytes. Nothing here imports torch before
somebody hands over one of its tensors.
"""

import sys

from libckpt.errors import Unsupported

NUMPY_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64",
    "float64": "F64", "complex64": "C64",
}  # fmt: skip
TORCH_NAMES = {
    "torch.bool": "BOOL", "torch.uint8": "U8", "torch.int8": "I8", "torch.uint16": "U16",
    "torch.int16": "I16", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.uint32": "U32",
    "torch.int32": "I32", "torch.float32": "F32", "torch.uint64": "U64", "torch.int64": "I64",
    "torch.float64": "F64", "torch.complex64": "C64", "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2", "torch.float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def is_torch(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value):
    """Whether it is an array whose bytes, type and shape are all there is to it: a masked one, a
    matrix and one of records are more."""
    numpy = sys.modules.get("numpy")
    is_plain = numpy is not None and type(value) in (numpy.ndarray, numpy.memmap)
    return is_plain and value.dtype.names is None


def byte_type():
    return sys.modules["torch"].uint8


def is_tensor(value):
    return is_torch(value) or is_numpy(value)


def type_of(tensor):
    """The name that safetensors has for it; none: it is stored as bytes."""
    if is_torch(tensor):
        return TORCH_NAMES.get(str(tensor.dtype))
    return NUMPY_NAMES.get(tensor.dtype.name) if tensor.dtype.isnative else None


def check(name, tensor):
    """Raises Unsupported, with what to do instead, for what cannot be copied as it lies."""
    if is_torch(tensor):
        _check_torch(name, tensor)
    elif tensor.dtype.hasobject:
        raise Unsupported(f'array "{name}": it holds Python objects; save them as a list')


def _check_torch(name, tensor):
    torch = sys.modules["torch"]
    problem = None
    if torch.nn.parameter.is_lazy(tensor):
        problem = "it is not initialized yet: make a forward pass before the first save"
    elif tensor.is_nested:
        problem = "it is a nested tensor: save the tensors of its unbind()"
    elif type(tensor).__name__ == "FakeTensor":
        problem = "it is a fake tensor, which has no data: save the real one"
    elif type(tensor).__name__ == "DTensor":
        problem = "it is a distributed tensor: save its local part, to_local()"
    elif hasattr(tensor, "__tensor_flatten__"):
        problem = (
            f"it is a {type(tensor).__name__}, which is made of other tensors: save those, of its "
            "__tensor_flatten__()"
        )
    elif tensor.layout != torch.strided:
        problem = f"its layout is {tensor.layout}: convert it with to_dense()"
    elif tensor.is_quantized:
        problem = "it is quantised: save its int_repr(), scale and zero point"
    elif tensor.device.type not in ("cpu", "cuda"):
        problem = f"it lies on the device {tensor.device}: move it to cpu or cuda"
    if problem:
        raise Unsupported(f'tensor "{name}": {problem}')


_dtype_names = {}  # Of torch's types: to make the text is slow.


def order_of(tensor):
    """Its dimensions in the order in which they lie in memory; (): it is contiguous. None: it is
    not dense."""
    is_one = is_torch(tensor)
    if tensor.is_contiguous() if is_one else tensor.flags.c_contiguous:
        return ()
    strides = tensor.stride() if is_one else tensor.strides
    order = tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], i)))
    lies = tensor.permute(order) if is_one else tensor.transpose(order)
    is_dense = lies.is_contiguous() if is_one else lies.flags.c_contiguous
    return order if is_dense else None


def as_stored(tensor):
    """The same memory with its dimensions as they lie, where it is dense."""
    order = order_of(tensor)
    if not order:
        return tensor
    return tensor.permute(order) if is_torch(tensor) else tensor.transpose(order)


def as_described(stored, description):
    """The other way round."""
    order = description.get("order")
    if not order:
        return stored
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return stored.permute(inverse) if is_torch(stored) else stored.transpose(inverse)


def stored_shape(description):
    shape = description["shape"]
    return [shape[i] for i in description.get("order", range(len(shape)))]


def describe(tensor, order=()):
    """What must be known to make it again: a plain dictionary."""
    found = _describe(tensor)
    return {**found, "order": list(order)} if order else found


def _describe(tensor):
    if is_torch(tensor):
        name = _dtype_names.get(tensor.dtype)
        if name is None:
            name = _dtype_names[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        return {"torch": name, "shape": list(tensor.shape)}
    return {"numpy": tensor.dtype.str, "shape": list(tensor.shape)}


def dress(content, description):
    """Bytes as the tensor that they were; the memory is shared."""
    if "torch" in description:
        import torch

        kind = torch_type(description["torch"])
        if content.nbytes == 0:
            return torch.empty(description["shape"], dtype=kind, device="cpu")
        made = torch.from_numpy(content).view(kind)
    else:
        import numpy

        made = content.view(numpy.dtype(description["numpy"]))
    return as_described(made.reshape(stored_shape(description)), description)


def torch_type(name):
    import torch

    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype):
        raise Unsupported(
            f"a saved tensor is of the type {name}, which torch {torch.__version__} does not have: "
            "restore it with the version that saved it, or a newer one"
        )
    return kind


def host_bytes(type_name, shape):
    """Memory for a tensor that has no place yet."""
    import numpy

    return numpy.empty(count_of(shape) * type_bytes(type_name), dtype=numpy.uint8)


def type_bytes(type_name):
    if type_name == "BOOL" or type_name.startswith("F8"):
        return 1
    return {"BF16": 2, "C64": 8}.get(type_name) or int(type_name[1:]) // 8


def count_of(shape):
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def stored_form(tensor):
    """(type, shape) as a checkpoint has them."""
    type_name, shape = type_of(tensor), tuple(tensor.shape)
    if type_name is None:
        size = tensor.element_size() if is_torch(tensor) else tensor.itemsize
        return "U8", (*shape, size)
    return type_name, shape


def described_form(description):
    """The same of a tensor that describe() told of."""
    shape = tuple(description["shape"])
    if "torch" in description:
        type_name = TORCH_NAMES.get(f"torch.{description['torch']}")
        if type_name is None:
            return "U8", (*shape, torch_type(description["torch"]).itemsize)
        return type_name, shape
    import numpy

    kind = numpy.dtype(description["numpy"])
    type_name = NUMPY_NAMES.get(kind.name) if kind.isnative else None
    return (type_name, shape) if type_name else ("U8", (*shape, kind.itemsize))


def is_writable(tensor):
    """Whether bytes may be written where it lies."""
    if is_torch(tensor):
        return order_of(tensor) is not None and not tensor.is_conj() and not tensor.is_neg()
    return order_of(tensor) is not None and tensor.flags.writeable


def why_not_writable(tensor):
    """Why no value can be copied to where it is; none: one can."""
    if not is_torch(tensor):
        return "" if tensor.flags.writeable else "the array is read-only: give a copy of it"
    if tensor.layout != sys.modules["torch"].strided:
        return f"its layout is {tensor.layout}: give it as to_dense()"
    if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
        return "it is expanded, so that many of its elements are one: give its clone()"
    return ""


def is_trained(tensor):
    """Whether an optimizer may hold it, so that another one in its place would be of no use."""
    return is_torch(tensor) and (
        tensor.requires_grad or isinstance(tensor, sys.modules["torch"].nn.Parameter)
    )


def memory_of(tensor):
    """The same for tensors that share memory, whatever part of it each of them has."""
    if is_torch(tensor):
        return tensor.untyped_storage().data_ptr() or id(tensor)
    base = tensor
    while is_numpy(base.base):
        base = base.base
    return base.__array_interface__["data"][0]


def is_same(one, other):
    """Whether they are one memory, so that there is nothing to copy."""
    if one is other:
        return True
    if not is_torch(one) or not is_torch(other):
        return False
    is_there = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return is_there and one.shape == other.shape and one.numel() > 0


def copy(source, target):
    if source is target:
        return
    if is_torch(target):
        target.detach().copy_(source)
    else:
        target[...] = source


def guarded_ranges(optimizers):
    """Bytes by address of what only these optimizers change: their parameters and their state."""
    ranges = {}
    for tensors in _owned(optimizers):
        ranges.update((tensor.data_ptr(), tensor.nbytes) for tensor in tensors)
    ranges.pop(0, None)
    return ranges


def guarded_tensors(optimizers):
    """The same tensors by address."""
    return {tensor.data_ptr(): tensor for tensors in _owned(optimizers) for tensor in tensors}


def addresses_of(optimizer):
    """Of all that its step may change."""
    return {tensor.data_ptr() for tensors in _tensors_of(optimizer) for tensor in tensors}


def owners(optimizers):
    """Those that are alive, and ask before each step."""
    for reference in optimizers:
        optimizer = reference()
        if optimizer is not None and not may_be_replayed(optimizer) and calls_hooks(optimizer):
            yield optimizer


def _owned(optimizers):
    for optimizer in owners(optimizers):
        yield from _tensors_of(optimizer)


def _tensors_of(optimizer):
    for group in optimizer.param_groups:
        yield group["params"]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            yield [part for part in state.values() if is_torch(part)]


def counts_writes(kept):
    """Whether torch counts the writes to what is kept of a tensor; a storage is that of one."""
    if is_torch(kept):
        return not kept.is_inference()
    return not is_numpy(kept)


def may_be_replayed(optimizer):
    """Whether its step may lie in a CUDA graph, whose replays call no hook of an optimizer."""
    return any(group.get("capturable") for group in optimizer.param_groups)


def calls_hooks(optimizer):
    """Whether its step still calls the hooks that are registered with it. torch.compile of some
    versions takes what calls them off the optimizers of torch, for good."""
    kind, base = type(optimizer), sys.modules["torch"].optim.Optimizer
    step, wrap = getattr(kind, "step", None), getattr(base, "profile_hook_step", None)
    if wrap is None or not getattr(step, "hooked", False):
        return True  # It has a way of its own.
    code = wrap(step).__code__
    while step is not None and getattr(step, "__code__", None) is not code:
        step = getattr(step, "__wrapped__", None)
    return step is not None


def is_recording_graph():
    """Whether what is queued now would go into a CUDA graph instead of being run."""
    cuda = sys.modules["torch"].cuda
    return cuda.is_initialized() and cuda.is_current_stream_capturing()


def gpus_of(views):
    """Those that the tensors lie on."""
    return sorted({view.gpu for view in views if view.gpu >= 0})


def current_streams(gpus):
    """The stream of each GPU that work is queued on now."""
    cuda = sys.modules["torch"].cuda if gpus else None
    return [cuda.current_stream(gpu) for gpu in gpus]


# Bytes of state for each byte of a parameter, of the usual optimizers.
STATE_OF = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "SGD": 1, "RMSprop": 2,
            "Adagrad": 1, "Adadelta": 2, "Rprop": 2, "Lion": 1}  # fmt: skip
STATE_MORE = ("amsgrad", "centered")  # With each of these options one more.
STATE_BYTES_EACH = 1024  # Step counters, what lies between tensors, and their long names.


def expected_bytes(optimizers, views):
    """What items with these optimizers will need once each has made a step."""
    total = sum(view.nbytes for view in views)
    for reference in optimizers:
        optimizer = reference()
        if optimizer is None or optimizer.state:
            continue
        usual = STATE_OF.get(type(optimizer).__name__, 2)
        for group in optimizer.param_groups:
            factor = usual + sum(bool(group.get(option)) for option in STATE_MORE)
            for parameter in group["params"]:
                if parameter.requires_grad:
                    total += factor * parameter.nbytes + STATE_BYTES_EACH
    return total
