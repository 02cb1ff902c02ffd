"""Shares: of what all ranks have alike, each captures a part.

Parameters and the state of optimizers are compared by digest when they are first seen, and then
given out by name; buffers are those of rank 0. What differs between ranks, and all that belongs to
no module and no optimizer (RNG, sampler, progress), each rank captures itself. Rank 0 decides: so
no rank takes another to have what it has not.
"""

import hashlib
import json
import logging
import weakref

from libckpt import _digest, _hooks, _tensors, errors, items as _items
from libckpt.rng import RNG

logger = logging.getLogger("libckpt")

SHARES = "libckpt.shares"  # In the structure: by name, the rank that captured it for all.


class Shares:
    def __init__(self, ranks):
        self._ranks = ranks
        self._known = {}  # By name: type and shape when it was compared.
        self._owners = {}  # By name: who captures it; none: each rank its own.
        self._told = "{}"  # The same as text.
        self._loads = [0] * ranks.world_size  # Bytes given out; rank 0 keeps them.

    def take(self, items, allow_pickle, known=None):
        """As items.take_all; of the tensors, those that are this rank's to capture."""
        if not self._ranks.are_several:
            return _items.take_all(items, allow_pickle, known)
        replicas = {}
        structure, tensors, members = _items.take_all(items, allow_pickle, known, replicas)
        self._compare({name: tensors[name] for name in replicas}, replicas)
        for name in replicas:
            if self._owners.get(name, self._ranks.rank) != self._ranks.rank:
                del tensors[name]
        if items:
            structure = f'{structure[:-1]},"{SHARES}":{self._told}}}'
        return structure, tensors, members

    def expected_bytes(self, items, optimizers, allow_pickle):
        """What this rank will capture at most, once each optimizer has made a step."""
        replicas = {}
        _, tensors, _ = _items.take_all(items, allow_pickle, replicas=replicas)
        sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
        shared = sum(sizes[name] for name, kind in replicas.items() if kind != _items.BUFFER)
        guarded = {id(reference()) for reference in optimizers}
        optimizers_of_items = filter(_items.is_optimizer, items.values())
        others = [i for i in optimizers_of_items if id(_hooks.stepping(i)) not in guarded]
        state = _tensors.expected_bytes([*optimizers, *map(weakref.ref, others)], ())
        share = (shared + state) // self._ranks.world_size
        return sum(sizes.values()) - shared + share + max(sizes.values(), default=0)

    def known_here(self, into, answer):
        """Of the items, those that were saved for this rank too; a rank that was not there then
        gets random generators of its own."""
        rank = self._ranks.rank
        if rank < answer["world_size"]:
            return into
        key = f"{self._ranks.job}/{answer['step']}/{rank}"
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
        generators = {name: item for name, item in into.items() if isinstance(item, RNG)}
        for item in generators.values():
            item.seed(seed)
        logger.warning(
            "libckpt: job %s: rank %d is new, step %d was saved by %d ranks: %s, all else is that "
            "of rank 0",
            self._ranks.job, rank, answer["step"], answer["world_size"],
            f"its random generators were seeded with {seed}" if generators
            else "seed its random generators",
        )  # fmt: skip
        return {name: item for name, item in into.items() if name not in generators}

    def _compare(self, tensors, kinds):
        """Those that are new, or not what they were."""
        known = self._known
        new = {
            name: tensor
            for name, tensor in tensors.items()
            if known.get(name) != (tensor.dtype, tensor.shape)
        }
        gone = known.keys() - tensors.keys()
        if new:
            self._give_out(new, kinds)
        for name in gone:
            del known[name]
            self._owners.pop(name, None)
        if new or gone:
            self._told = json.dumps(self._owners, separators=(",", ":"))

    def _give_out(self, tensors, kinds):
        for name, tensor in tensors.items():
            self._known[name] = (tensor.dtype, tensor.shape)
            self._owners.pop(name, None)
        compared = {n: t for n, t in tensors.items() if kinds[n] != _items.BUFFER}
        digests = _digest.of_tensors(compared)
        told = {}
        for name, tensor in tensors.items():
            form = [*_tensors.stored_form(tensor), digests.get(name)]
            told[name] = [form, tensor.nbytes, _place(tensor)]
        try:
            self._owners.update(self._ranks.decide("replicas", told, self._rule))
        except errors.Unavailable as error:
            # All that a rank captures without need can still be restored.
            logger.error("libckpt: %s; this rank captures all of its tensors", error)

    def _rule(self, told):
        """By name, who captures it."""
        first = told[0]
        alike = [
            name
            for name, (form, *_) in first.items()
            if all(name in other and other[name][0] == form for other in told[1:])
        ]
        if len(alike) < len(first):
            apart = sorted(set(first) - set(alike))
            logger.warning(
                "libckpt: job %s: %d of %d tensors differ between ranks, among them %s: each rank "
                "captures its own",
                self._ranks.job, len(apart), len(first), ", ".join(apart[:3]),
            )  # fmt: skip
        owners, tied = {}, {}
        for name in sorted(alike, key=lambda name: (-first[name][1], name)):
            (*_, digest), size, place = first[name]
            owner = 0 if digest is None else tied.get(place)
            if owner is None:
                owner = self._loads.index(min(self._loads))
            if place:
                tied.setdefault(place, owner)  # One memory under two names is stored once.
            owners[name] = owner
            self._loads[owner] += size
        return owners


def _place(tensor):
    if tensor.nbytes == 0:
        return 0
    return tensor.data_ptr() if _tensors.is_torch(tensor) else tensor.ctypes.data
