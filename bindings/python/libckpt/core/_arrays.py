"""Arrays: parts of larger tensors, for adapters of frameworks that shard their state.

A reader finds such a tensor by its name and by the place of the part, whichever ranks saved it.
"""

import logging
import operator

from libckpt import _native, errors
from libckpt.core import _items, _tensors, _views

logger = logging.getLogger("libckpt")


class Array:
    """A part of a larger tensor: a box of it, or a range of it as it is flattened.

    name: the larger tensor's, the same on all ranks. A rank that has several parts of a tensor "w"
        names each after a box that it lies in, "w[0:4,2:4]", or after a range, "w[20:32]". Others
        find them under "w", and under the names of their own parts.
    buffer: the part's memory, which each save copies and a restore fills in place. A TensorShape
        makes a new tensor of that shape.
    global_shape: the larger tensor's.
    offset: the box's first element, in each dimension. Give this or `flat`.
    flat: the range's first element, in the flattened tensor.
    copy: the number of this copy, from 0, where several ranks hold the same part. Each copy is
        captured, and a save to storage compares them.
    copies: the number of copies. The ranks then divide the capture of the part among themselves,
        and a restore gives each rank the whole part.
    may_go: no save warns when the array is missing from a later call.
    is_constant: nobody writes or reuses the buffer while it lives. A save copies it behind the
        training, and holds it until then.
    """

    __slots__ = ("_first", "buffer", "copies", "copy", "flat", "global_shape", "is_constant",
                 "may_go", "name", "offset")  # fmt: skip

    def __init__(self, name, buffer, *, global_shape, offset=None, flat=None, copy=None, copies=0,
                 may_go=False, is_constant=False):  # fmt: skip
        if (offset is None) == (flat is None):
            raise errors.InvalidArgument(f'array "{name}": give offset, or flat')
        if not isinstance(name, str):
            raise errors.InvalidArgument(f"array {name!r}: its name is no text")
        if isinstance(buffer, _tensors.TensorShape):
            buffer = _tensors.made(buffer)
        _check_buffer(name, buffer)
        self.name, self.buffer, self.may_go = name, buffer, may_go
        self.is_constant = is_constant
        self.global_shape = _numbers(name, "global_shape", global_shape)
        self.offset = None if offset is None else _numbers(name, "offset", offset)
        self.flat = None if flat is None else _number(name, "flat", flat)
        self.copy = 0 if copy is None else _number(name, "copy", copy)
        self.copies = _number(name, "copies", copies)
        # A first copy that does not say so looks like a tensor of the rank's own.
        self._first = 1 if copy is not None and not self.copies else 0

    def place(self):
        """The arguments behind the tensor in a call of the library."""
        order = _tensors.order_of(self.buffer) if self.flat is None else ()
        return (self.global_shape, self.offset, self.flat, order or None,
                self._first + self.copy, self.copies)  # fmt: skip


def _check_buffer(name, buffer):
    if not _tensors.is_tensor(buffer):
        raise errors.InvalidArgument(
            f'array "{name}": its buffer is a {_kind_text(buffer)}, and no tensor'
        )
    # Elements that only their own framework knows are stored as their bytes.
    if len(_tensors.stored_form(buffer)[1]) != len(buffer.shape):
        raise errors.InvalidArgument(
            f'array "{name}": its buffer is a {_kind_text(buffer)}, which can only be saved as an '
            "item"
        )


def _kind_text(buffer):
    dtype = getattr(buffer, "dtype", None)
    return type(buffer).__name__ if dtype is None else f"{type(buffer).__name__} of {dtype}"


def _number(name, what, given):
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if number < 0:
        raise errors.InvalidArgument(
            f'array "{name}": {what} has {given!r}: whole numbers from 0 on are wanted'
        )
    return number


def _numbers(name, what, given):
    return tuple(_number(name, what, each) for each in given)


def whole(name, form):
    """A new array that is all of it, of a TensorShape."""
    return Array(name, form, global_shape=form.shape, offset=(0,) * len(form.shape))


class _Part:
    """A part of a larger tensor that an item holds."""

    __slots__ = ("_place", "buffer")

    def __init__(self, buffer, place):
        self.buffer, self._place = buffer, place

    def place(self):
        return self._place


class Arrays:
    """Those of one call, by name, with the parts that items hold."""

    def __init__(self, arrays, tensors):
        """`tensors`: those of the items, by name."""
        places = getattr(tensors, "places", {})
        self._by_name = {name: _Part(tensors[name], place) for name, place in places.items()}
        for array in () if arrays is None else arrays:
            if isinstance(array, str):
                raise errors.InvalidArgument(
                    f'array "{array}": a restore alone takes a name, and makes an array of it'
                )
            _items.check_name(array.name)
            if array.name in self._by_name or array.name in tensors:
                raise errors.InvalidArgument(f'array "{array.name}": this name is there twice')
            self._by_name[array.name] = array

    def __bool__(self):
        return bool(self._by_name)

    def __contains__(self, name):
        return name in self._by_name

    def tensors(self):
        return {name: array.buffer for name, array in self._by_name.items()}

    def places(self):
        return {name: array.place() for name, array in self._by_name.items()}

    def tensor_names(self):
        """By name, the tensor that each is a part of."""
        return {name: _tensor_name(name, array) for name, array in self._by_name.items()}

    def parts(self):
        """Names of those that are parts of items."""
        return {name for name, array in self._by_name.items() if isinstance(array, _Part)}

    def given(self):
        """Names of those that are no part of an item."""
        return self._by_name.keys() - self.parts()

    def nbytes(self):
        """Only those that are no part of an item."""
        return sum(self._by_name[name].buffer.nbytes for name in self.given())

    def renamed(self, name_of):
        """The same under other names."""
        found = Arrays((), {})
        found._by_name = {name_of(name): array for name, array in self._by_name.items()}
        return found

    def leave_out(self, names):
        for name in names:
            del self._by_name[name]

    def expected(self):
        """Names of those that are to be there at the next call, too."""
        return {name for name in self.given() if not self._by_name[name].may_go}

    def constants(self):
        """By name, the memory of those that nobody writes."""
        own = {name: self._by_name[name] for name in self.given()}
        return {name: array.buffer for name, array in own.items() if array.is_constant}

    def warn_of_lost(self, step, expected):
        """`expected`: what expected() was at the call before."""
        lost = sorted(expected - self._by_name.keys())
        if lost:
            logger.warning(
                'libckpt: step %d: %d array(s) of the call before are not given, "%s" first: '
                "checkpoints from now on are without; a generator gives its arrays once only",
                step, len(lost), lost[0],
            )  # fmt: skip

    def check_writable(self):
        for name, array in self._by_name.items():
            if not _tensors.is_writable(array.buffer):
                problem = _tensors.why_not_writable(array.buffer) or _why_not_as_it_lies(array)
                raise errors.InvalidArgument(
                    f'restore: array "{name}" cannot be filled: {problem}'
                )


def _tensor_name(name, array):
    if "[" not in name:
        return name
    view = _views.view_of(name, array.buffer)
    place = (name, view.address, view.type, view.shape, view.gpu, False, array.place())
    return _native.larger_name_of(place)


def _why_not_as_it_lies(array):
    if _tensors.kind_of(array.buffer).lies_plain(array.buffer):
        return "it has gaps"
    return (
        "its bytes are not its values, which are conjugated or negated when they are read: give "
        "what resolve_conj() or resolve_neg() makes of it"
    )


def check_parts(step, nodes, arrays):
    """Requires a place here for each part that was saved: else nothing says which part to read."""
    for name, node in nodes.items():
        if node.get("part") and name not in arrays:
            raise errors.InvalidArgument(
                f'restore step {step}: tensor "{name}" was saved in parts, by ranks that held it '
                "together, and is not divided among the ranks here: give the item as it was saved, "
                "and an optimizer before the first backward pass"
            )
