"""NewArrays: arrays that a restore makes anew, of which its caller gives the names alone."""

import dataclasses

from libckpt import errors
from libckpt.core import _arrays, _compare, _shapes
from libckpt.core._tensors import TensorShape


class NewArrays:
    def __init__(self, arrays):
        self._arrays = list(arrays or ())  # A generator gives them once only.
        self._wanted = [each for each in self._arrays if isinstance(each, str)]
        self._made = {}

    def __bool__(self):
        return bool(self._wanted)

    def check(self, ranks, path):
        """The daemons put no whole array together for ranks that have parts of it."""
        if self._wanted and path is None and ranks.world_size > 1:
            raise errors.InvalidArgument(
                f'restore: array "{self._wanted[0]}": several ranks name arrays only in a restore '
                "from a path: give a libckpt.Array with the part that this rank wants"
            )

    def shapes(self, names):
        """The targets of a restore that looks for them first."""
        return _shapes.Shapes(names, self._wanted)

    def make(self, ranks, answer, forms):
        """`forms`: what this rank's look at the step found, as Shapes.arrays() says."""
        forms, failure = _of_all(ranks, forms), None
        try:
            for name in self._wanted:
                self._made[name] = _arrays.whole(name, _form_of(answer["step"], name, forms))
        except errors.CheckpointError as error:
            failure = error
        ranks.agree("new arrays", failure)

    def wish_of(self, wish, answer):
        """The wish with arrays in the place of names, of the step that was looked at."""
        arrays = [self._made.get(each, each) if isinstance(each, str) else each
                  for each in self._arrays]  # fmt: skip
        if not self._wanted:
            return dataclasses.replace(wish, arrays=arrays)
        place = {"step": answer["step"]} if wish.path is None else {"path": answer["path"]}
        return dataclasses.replace(wish, arrays=arrays, **place)

    def by_name(self):
        return {name: array.buffer for name, array in self._made.items()}


def _of_all(ranks, own):
    """Each rank looks at its own shard, which need not have a part of all."""
    said = {name: [list(form.shape), form.dtype] for name, form in own.items()}
    found = {}
    for forms in ranks.exchange("arrays", said):
        for name, (shape, dtype) in forms.items():
            found.setdefault(name, TensorShape(tuple(shape), dtype))
    return found


def _form_of(step, name, forms):
    if name in forms:
        return forms[name]
    raise errors.InvalidArgument(
        f'restore step {step}: no array "{name}" is in the shards that the ranks here look at: '
        f"{_compare.listed(sorted(forms)) or 'none'} are there; of another one give the shape: "
        f'libckpt.Array("{name}", libckpt.TensorShape(shape, dtype), global_shape=..., offset=...)'
    )
