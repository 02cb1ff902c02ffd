"""Views: where the bytes of tensors lie that are to be copied, remembered from save to save.

Most tensors lie where they lay: thousands of them are looked at in one call, and only those that
moved, or are not what they were, are asked anew. No tensor is kept alive by that. One that is dense
is copied as it lies, whatever the order of its dimensions. One with gaps is copied into a
buffer that is kept for it, and so is a small one that comes at another address each time.
"""

import math

from libckpt import _native
from libckpt.core import _frameworks, _tensors

BUFFERED_BYTES_MAX = 64 << 10  # The states of random generators, for instance, have a few KiB.


class View:
    """A tensor that can be copied as it lies."""

    __slots__ = ("address", "counts_writes", "gpu", "is_buffered", "is_frozen", "kept", "nbytes",
                 "shape", "type")  # fmt: skip

    def __init__(self, kept, address, type_name, shape, gpu, is_buffered=False):
        kind = _tensors.kind_of(kept)
        self.kept = kept if is_buffered or kind is None else None
        self.counts_writes = kind is None or kind.counts_writes(kept)  # A storage is a tensor's.
        self.address = address
        self.type = type_name
        self.shape = shape
        self.nbytes = math.prod(shape) * _tensors.type_bytes(type_name)
        self.gpu = gpu
        self.is_buffered = is_buffered
        self.is_frozen = False  # As it was at the first look: the layout keeps its order.


class Views:
    """The views of the tensors of one save after the other."""

    def __init__(self):
        self._views = {}
        self._places = None

    def of(self, tensors):
        """By name; the very same dictionary as before when all of it is as it was."""
        names, values = list(tensors), list(tensors.values())
        are_as_before = self._places is not None and names == list(self._views)
        moved = self._places.moved(values) if are_as_before else range(len(names))
        views = {names[i]: self._of_one(names[i], values[i]) for i in moved}
        if are_as_before and all(self._views[name] is view for name, view in views.items()):
            return self._views
        self._views = self._views | views if are_as_before else views
        lying = [
            None if view.is_buffered else tensor
            for view, tensor in zip(self._views.values(), values, strict=True)
        ]
        self._places = _native.Places(exchange_api(), lying)
        return self._views

    def _of_one(self, name, tensor):
        known = self._views.get(name)
        if known is not None and not known.is_buffered and _is_where(tensor, known):
            return known
        return view_of(name, tensor, known, known is not None and _is_small(tensor))


def view_of(name, tensor, known=None, is_buffered=False):
    """The view of one tensor. With a buffer it is copied there: to that of `known`, if it fits."""
    kind = _tensors.kind_of(tensor)
    kind.check(name, tensor)
    is_frozen = kind.is_frozen(tensor)
    tensor = kept = _tensors.as_stored(kind.detached(tensor))
    if is_buffered or not (kind.lies_plain(tensor) and kind.is_contiguous(tensor)):
        is_buffered = True
        if _fits(kind, known, tensor):
            kind.copy(tensor, known.kept)
            return known
        kept = kind.buffer_like(tensor)
        kind.copy(tensor, kept)
    type_name, shape = _tensors.stored_form(tensor)
    address = kind.address_of(kept)
    view = View(kept, address, type_name, shape, kind.gpu_of(tensor), is_buffered)
    view.is_frozen = is_frozen
    return view


def view_in_place(tensor, type_name, shape, order):
    if tensor is None or not _tensors.is_writable(tensor) or _tensors.order_of(tensor) != order:
        return None
    view = view_of("", tensor)
    return view if (view.type, tuple(view.shape)) == (type_name, tuple(shape)) else None


def _fits(kind, known, tensor):
    """Whether the buffer of the view can hold it."""
    is_buffer = known is not None and known.is_buffered and _tensors.kind_of(known.kept) is kind
    return is_buffer and kind.fits(known.kept, tensor)


def _is_small(tensor):
    is_on_host = _tensors.kind_of(tensor).gpu_of(tensor) < 0
    return is_on_host and 0 < tensor.nbytes <= BUFFERED_BYTES_MAX


def _is_where(tensor, view):
    """Whether its bytes are those of the view, which looks at them in this form."""
    kind = _tensors.kind_of(tensor)
    return (
        kind.lies_plain(tensor)
        and _tensors.order_of(tensor) is not None
        and (kind.address_of(tensor), kind.gpu_of(tensor)) == (view.address, view.gpu)
        and kind.counts_writes(tensor) == view.counts_writes
        and _tensors.stored_form(_tensors.as_stored(tensor)) == (view.type, view.shape)
    )


def exchange_api():
    """The capsule that describes tensors without objects of Python, or None."""
    api, _ = _frameworks.first_answer(lambda adapter: adapter.exchange()) or (None, None)
    return api
