"""Views: where the bytes of tensors lie that are to be copied, remembered from save to save.

Most tensors lie where they lay: thousands of them are looked at in one call, and only those that
moved, or are not what they were, are asked anew. No tensor is kept alive by that. One that is dense
is copied as it lies, whatever the order of its dimensions. Of one with gaps a copy is made in a
buffer that is kept for it, and so of a small one that comes at another address each time.
"""

import sys

from libckpt import _core, _tensors

BUFFERED_BYTES_MAX = 64 << 10  # The states of random generators, for instance, have a few KiB.


class View:
    """A tensor that can be copied as it lies."""

    __slots__ = ("address", "counts_writes", "gpu", "is_buffered", "kept", "nbytes", "shape",
                 "type")  # fmt: skip

    def __init__(self, kept, address, type_name, shape, gpu, is_buffered=False):
        self.kept = kept if is_buffered or not _tensors.is_tensor(kept) else None
        self.counts_writes = _tensors.counts_writes(kept)
        self.address = address
        self.type = type_name
        self.shape = shape
        self.nbytes = _tensors.count_of(shape) * _tensors.type_bytes(type_name)
        self.gpu = gpu
        self.is_buffered = is_buffered


class Views:
    """Of the tensors of one save after the other."""

    def __init__(self):
        self._views = {}
        self._names = []  # Of the views, in turn.
        self._places = None

    def of(self, tensors):
        """By name; the very same dictionary as before when all of it is as it was."""
        names, values = list(tensors), list(tensors.values())
        if self._places is None or names != self._names:
            moved = range(len(names))
        else:
            moved = self._places.moved(values)
        views = {names[i]: self._of_one(names[i], values[i]) for i in moved}
        is_as_before = all(self._views.get(name) is view for name, view in views.items())
        if is_as_before and names == self._names:
            return self._views
        if names == self._names:
            self._views = self._views | views
        else:
            self._views, self._names = views, names
        lying = [
            None if view.is_buffered else tensor
            for view, tensor in zip(self._views.values(), values, strict=True)
        ]
        self._places = _core.Places(exchange_api(), lying)
        return self._views

    def _of_one(self, name, tensor):
        known = self._views.get(name)
        if known is not None and not known.is_buffered and _is_where(tensor, known):
            return known
        return view_of(name, tensor, known, known is not None and _is_small(tensor))


def view_of(name, tensor, known=None, is_buffered=False):
    """Of one tensor. With a buffer it is copied there: into that of `known`, where it fits."""
    if not _tensors.is_torch(tensor):
        return _view_numpy(name, tensor, known, is_buffered)
    torch = sys.modules["torch"]
    _tensors.check(name, tensor)
    tensor = kept = _tensors.as_stored(tensor.detach())
    if is_buffered or not _tensors.is_writable(tensor):
        if _fits(known, tensor):
            known.kept.copy_(tensor)
            return known
        with torch.inference_mode(False):  # Else only that mode could write it again.
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        kept.copy_(tensor)
        is_buffered = True
    type_name, shape = _tensors.stored_form(tensor)
    gpu = tensor.device.index or 0 if tensor.device.type == "cuda" else -1
    return View(kept, kept.data_ptr(), type_name, shape, gpu, is_buffered)


def _view_numpy(name, array, known, is_buffered):
    numpy = sys.modules["numpy"]
    _tensors.check(name, array)
    array = kept = _tensors.as_stored(array)
    if is_buffered or not array.flags.c_contiguous:
        if _fits(known, array):
            known.kept[...] = array
            return known
        kept = numpy.empty(array.shape, dtype=array.dtype)
        kept[...] = array
        is_buffered = True
    type_name, shape = _tensors.stored_form(array)
    return View(kept, kept.ctypes.data, type_name, shape, -1, is_buffered)


def _fits(known, tensor):
    """Whether the buffer of the view can hold it."""
    return (
        known is not None
        and known.is_buffered
        and _tensors.is_torch(known.kept) == _tensors.is_torch(tensor)
        and known.kept.dtype == tensor.dtype
        and known.kept.shape == tensor.shape
        and known.kept.device == tensor.device
    )


def _is_small(tensor):
    if _tensors.is_torch(tensor) and tensor.device.type != "cpu":
        return False
    return 0 < tensor.nbytes <= BUFFERED_BYTES_MAX


def _is_where(tensor, view):
    """Whether its bytes are those of the view, which looks at them in this form."""
    is_one = _tensors.is_torch(tensor)
    if is_one and (tensor.is_conj() or tensor.is_neg() or tensor.layout is not _strided()):
        return False
    order = _tensors.order_of(tensor)
    address = tensor.data_ptr() if is_one else tensor.ctypes.data
    gpu = tensor.device.index or 0 if is_one and tensor.device.type == "cuda" else -1
    return (
        order is not None
        and (address, gpu) == (view.address, view.gpu)
        and _tensors.counts_writes(tensor) == view.counts_writes
        and _tensors.stored_form(_tensors.as_stored(tensor)) == (view.type, view.shape)
    )


def _strided():
    return sys.modules["torch"].strided


def exchange_api():
    """What tells of tensors without making objects; None: this torch does not have it."""
    torch = sys.modules.get("torch")
    return getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
