"""Ties: tensors that share memory here, and were saved apart, must have the same values there.

The library compares those of one shard before it writes any of them. This is for the others: the
second one gets a place of its own, and is compared before anything is filled from there.
"""

from libckpt import errors
from libckpt.core import _tensors


class Ties:
    def __init__(self, alike):
        """`alike`: by memory, the names of the tensors here that have a part of it."""
        groups = [names for names in alike.values() if len(names) > 1]
        self._sharing = {name: names for names in groups for name in names}

    def is_taken(self, name, placed, sources):
        """Whether another shard's bytes, of another name, come to the memory. `sources`: by name,
        the shard that has the tensor; those of one are compared."""
        return any(
            other in placed and sources.get(other) != sources.get(name)
            for other in self._sharing.get(name, ())
            if other != name
        )

    def check(self, name, own, made, placed):
        """Raises InvalidArgument where the value would change what another name has got."""
        for other in self._sharing.get(name, ()):
            if other in placed and _lies_in(own, placed[other]) and not _is_equal(own, made):
                raise errors.InvalidArgument(
                    f'restore: tensors "{other}" and "{name}" share memory here but differ there: '
                    "restore into tensors that are apart, as they were saved"
                )


def _lies_in(one, other):
    if _tensors.order_of(one) is None or _tensors.order_of(other) is None:
        return False
    begin, start = _tensors.address_of(one), _tensors.address_of(other)
    return start <= begin and begin + one.nbytes <= start + other.nbytes


def _is_equal(own, made):
    kind = _tensors.kind_of(own)
    is_alike = kind is _tensors.kind_of(made)
    is_alike = is_alike and _tensors.stored_form(own) == _tensors.stored_form(made)
    return not is_alike or kind.is_equal(own, made)
