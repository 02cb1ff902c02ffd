"""Boxes: the parts of arrays that a load reads, in memory of their own or where they are wanted."""

import torch

from libckpt import errors
from libckpt.core._arrays import Array
from libckpt.dcp._capturing import in_stored_type
from libckpt.dcp._names import COPY


class Box:
    """A part of an array as it is to be read, in memory of its own."""

    def __init__(self, place, begin, lengths):
        self._size, self._type = tuple(place.size), place.type
        self._begin = list(begin)
        self._end = [b + n for b, n in zip(begin, lengths, strict=True)]
        self._memory = None

    @classmethod
    def of(cls, place):
        return cls(place, place.begin, place.sizes)

    def grow(self, begin, lengths):
        """Until it has this part, too."""
        ends = [b + n for b, n in zip(begin, lengths, strict=True)]
        self._begin = list(map(min, self._begin, begin))
        self._end = list(map(max, self._end, ends))

    @property
    def memory(self):
        if self._memory is None:
            self._memory = torch.empty(self._lengths(), dtype=self._type, device="cpu")
        return self._memory

    def _lengths(self):
        return [e - b for b, e in zip(self._begin, self._end, strict=True)]

    def fits(self, target, begin, lengths):
        """Whether the memory of the target, where that part is wanted, can be the box's own."""
        is_all = (list(begin), list(lengths)) == (self._begin, self._lengths())
        is_alike = target.dtype == self._type and list(target.shape) == self._lengths()
        is_plain = target.device.type == "cpu" and target.layout == torch.strided
        is_plain = is_plain and not target.is_conj() and not target.is_neg()  # Made when read.
        return is_all and is_alike and is_plain and target.is_contiguous() and target.numel() > 0

    def take(self, target):
        self._memory = target

    def array(self, name):
        # A box without elements lies in every tensor.
        begin = self._begin if self.memory.numel() else [0] * len(self._begin)
        memory = in_stored_type(self.memory)
        return Array(name, memory, global_shape=self._size, offset=begin, copy=COPY,
                     may_go=True)  # fmt: skip

    def bytes(self):
        return self.memory.reshape(-1).view(torch.uint8)

    def part(self, begin, lengths):
        found = self.memory
        for i, (at, count) in enumerate(zip(begin, lengths, strict=True)):
            found = found.narrow(i, at - self._begin[i], count)
        return found


def offer(offers):
    """Lets boxes read straight to where they are wanted. `offers`: each a box, the tensor that
    wants a part, and where that part lies."""
    fitting = [
        (target.data_ptr(), target.nbytes, box, target)
        for box, target, begin, lengths in offers
        if box.fits(target, begin, lengths)
    ]
    fitting.sort(key=lambda each: each[0])
    end, taken = 0, []
    for address, nbytes, box, target in fitting:
        # Two names of one memory: libckpt would not fill it twice. The later one is copied.
        if address >= end:
            taken.append((box, target))
        end = max(end, address + nbytes)
    for box, target in taken:
        box.take(target)


def check_shared(parts):
    """Raises InvalidArgument for two names of one memory that were saved with two values. `parts`:
    each a name, the tensor that wants it, and what was saved."""
    seen = {}
    for name, target, part in parts:
        place = (target.data_ptr(), target.dtype, target.shape, target.stride(), target.is_conj())
        other, before = seen.setdefault(place, (name, part))
        if other != name and target.numel() and not torch.equal(_bytes(before), _bytes(part)):
            raise errors.InvalidArgument(
                f'dcp: load: "{other}" and "{name}" share memory here but differ there: load into '
                "tensors that are apart, as they were saved"
            )


def _bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)
