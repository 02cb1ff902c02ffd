"""Shapes: a step's items without their tensors, of which no byte is copied to the trainer."""

from libckpt import errors
from libckpt.core import _compare, _other_ranks, _rebuild, _registration, _structure, _tensors
from libckpt.core._tensors import TensorShape


class Shapes:
    """In the place of _restore.Targets, for a restore that wants no tensor."""

    wants_tensors = False
    of_a_share = leaves_arrays = False

    def __init__(self, names, wanted=()):
        """`wanted`: names of arrays that are looked for in other shards, too."""
        self.names = names
        self.structure = None
        self.placed, self.differences = {}, _compare.Differences()
        self._wanted = set(wanted)
        self._larger = {}  # By name, the shapes of what the parts in the shards belong to.
        self._whole = {}  # By name, those of the other tensors.

    def choose(self, _, stored, structure):
        self.structure = structure
        self._larger, self._whole = {}, {}
        return self.choose_more(_, stored, structure)

    def choose_more(self, _, stored, structure):
        """The same of a further shard."""
        own, of_others = _other_ranks.split(stored)
        for each in [own, *of_others.values()]:
            for name, kind, shape, _, whole in each:
                if whole is not None:
                    larger, dimensions = whole
                    self._larger[larger] = TensorShape(tuple(dimensions), kind)
                else:
                    self._whole.setdefault(name, TensorShape(tuple(shape), kind))
        return []

    def lacks(self):
        """Whether an array that is looked for has not been seen."""
        return bool(self._wanted - self._larger.keys() - self._whole.keys())

    def values(self, structure, allow_pickle):
        """The items; and by name the arrays of which the shards that were seen have a part."""
        own = _items_of(structure)
        rebuilder = _Rebuilder(own | self._larger, {}, allow_pickle)
        return _rebuild.rebuilt_by(rebuilder, structure), self.arrays(structure)

    def arrays(self, structure):
        own = _items_of(structure)
        known = {**self._whole, **self._larger}
        return {name: form for name, form in known.items()
                if name not in own and name != _registration.ROOM and "//" not in name}  # fmt: skip


def _items_of(structure):
    """By name, the shapes of tensors that items hold."""
    forms = {node["t"]: _tensors.described_form(node)
             for node in _structure.tensor_nodes(structure)}  # fmt: skip
    return {name: TensorShape(tuple(shape), kind) for name, (kind, shape) in forms.items()}


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
