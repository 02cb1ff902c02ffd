"""Shapes: a step's items without their tensors, of which no byte is copied to the trainer."""

import dataclasses

from libckpt import errors
from libckpt.core import _compare, _other_ranks, _rebuild, _structure, _tensors


@dataclasses.dataclass(frozen=True)
class TensorShape:
    """Stands for a tensor of a step. `dtype` as in messages and in `ckpt inspect`: "BF16"."""

    shape: tuple[int, ...]  # Of all of it, where ranks saved parts.
    dtype: str


class Shapes:
    """In the place of _restore.Targets, for a restore that wants no tensor."""

    wants_tensors = False
    of_a_share = leaves_arrays = False

    def __init__(self, names):
        self.names = names
        self.structure = None
        self.placed, self.differences = {}, _compare.Differences()
        self._larger = {}  # By name, the shapes of what the parts in this rank's shard belong to.

    def choose(self, _, stored, structure):
        self.structure = structure
        own, _ = _other_ranks.split(stored)
        self._larger = {name: TensorShape(tuple(whole), kind)
                        for name, kind, _, _, whole in own if whole is not None}  # fmt: skip
        return []

    def values(self, structure, allow_pickle):
        """The items; and by name the arrays of which this rank's shard has a part."""
        forms = {node["t"]: _tensors.described_form(node)
                 for node in _structure.tensor_nodes(structure)}  # fmt: skip
        own = {name: TensorShape(tuple(shape), kind) for name, (kind, shape) in forms.items()}
        arrays = {name: each for name, each in self._larger.items() if name not in own}
        rebuilder = _Rebuilder(own | self._larger, {}, allow_pickle)
        return _rebuild.rebuilt_by(rebuilder, structure), arrays


class _Rebuilder(_rebuild.Rebuilder):
    def rebuild(self, node):
        if "a" in node:  # A file of its own, which has no shape.
            return None
        if "n" in node:
            return self.rebuild(node["n"])
        return self.rebuild(node["g"][1]) if "g" in node else super().rebuild(node)


def refusal(step):
    """Why saves are refused after that: the trainer does not stand where the job does."""
    return errors.InvalidArgument(f"only the shapes of step {step} were read")
