"""Replicas: each rank captures a part of the state that is declared to be the same on all.

DistributedDataParallel declares it: its parameters, with the state that optimizers have for them,
and its buffers, which are rank 0's unless it has broadcast_buffers=False. Nothing is guessed
from names or bytes. All else (RNG, sampler, progress, a module without that wrapper) each rank
captures itself.

Ranks compare declared tensors by digest, in a round of `_rounds`, when they first see them and
about once for each save to storage. A difference is logged by name, and each rank captures its own
tensor from then on.
"""

import hashlib
import json
import logging

from libckpt.core import _item_kinds, _items, _registration, _rounds
from libckpt.core._ranks import counted
from libckpt.rng import RNG

logger = logging.getLogger("libckpt")

SHARES = "libckpt.shares"  # In the structure: by name, the rank that captured it for all.
NAMED = 3
STRETCH_BYTES_MIN = 16 << 10  # The library divides a part when each copy gets so much of it.


class Replicas:
    def __init__(self, ranks, storage_interval=None):
        self._ranks = ranks
        self._schedule = _rounds.Schedule(ranks, storage_interval)
        self._rounds = _rounds.Rounds(ranks, self._rule)
        self._forms = {}  # By name: type and shape when a round asked about it.
        self._owners = {}  # By name: the rank that captures it; none: each rank its own.
        self._apart = set()  # Names that were not the same once.
        self._owners_text = "{}"  # The owners as text.
        self._loads = [0] * ranks.world_size  # Bytes that each captures, as rank 0 divides them.
        self._has_logged = False

    def flatten(self, step, items, allow_pickle, known=None):
        """As items.flatten; of the tensors, those that are this rank's to capture."""
        if not self._ranks.are_several:
            return _items.flatten(items, allow_pickle, known)
        replicas = {}
        structure, tensors, members = _items.flatten(items, allow_pickle, known, replicas)
        declared = {name: tensors[name] for name in replicas}
        self._compare(step, declared, replicas, has_tensors=bool(tensors))
        for name in replicas:
            if self._owners.get(name, self._ranks.rank) != self._ranks.rank:
                del tensors[name]
        if items:
            structure = f'{structure[:-1]},"{SHARES}":{self._owners_text}}}'
        return structure, tensors, members

    def expected_bytes(self, items, optimizers, allow_pickle):
        """The most that this rank will capture, once each optimizer has made a step."""
        replicas = {}
        _, tensors, _ = _items.flatten(items, allow_pickle, replicas=replicas)
        sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
        given_out = [sizes[name] for name, kind in replicas.items() if kind != _item_kinds.BUFFER]
        shared = sum(given_out)
        state = _registration.state_bytes(items.values(), optimizers)
        # State is divided among copies as the parameters are.
        share = shared + int(state * captured_share(sizes, tensors.places))
        if shared:
            share //= self._ranks.world_size
        # Whole tensors are given out: a rank may get one more than an even share.
        return sum(sizes.values()) - shared + share + max(given_out, default=0)

    def known_here(self, into, answer):
        """The items that were saved for this rank. A rank that did not exist then seeds its own
        random generators."""
        rank = self._ranks.rank
        if rank < answer["world_size"] or not into:
            return into
        key = f"{self._ranks.job}/{answer['step']}/{rank}"
        # 63 bits: some generators take signed seeds only.
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
        generators = {name: item for name, item in into.items() if isinstance(item, RNG)}
        for item in generators.values():
            item.seed(seed)
        logger.warning(
            "libckpt: job %s: rank %d is new, step %d was saved by %s: %s, all else is that of "
            "rank %d",
            self._ranks.job, rank, answer["step"], counted(answer["world_size"]),
            f"its random generators were seeded with {seed}" if generators
            else "seed its random generators",
            answer["items_of"],
        )  # fmt: skip
        return {name: item for name, item in into.items() if name not in generators}

    def _compare(self, step, tensors, kinds, has_tensors):
        """Begins a round for those that are new, or not what they were, and for a save to storage;
        and takes up what was found since."""
        forms = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        gone = [name for name, form in self._forms.items() if forms.get(name) != form]
        for name in gone:
            del self._forms[name]
            self._owners.pop(name, None)
        self._adopt(self._rounds.heard())
        new = forms.keys() - self._forms.keys() - self._apart
        if not tensors:
            self._log_once(has_tensors)
        elif new or self._schedule.is_due(step):
            self._forms |= forms
            asked = {name: t for name, t in tensors.items() if name not in self._apart}
            digested = [name for name in asked if kinds[name] != _item_kinds.BUFFER]
            self._adopt(self._rounds.begin(step, asked, digested, waits=bool(new)))
        if gone or new:
            self._owners_text = json.dumps(self._owners, separators=(",", ":"))

    def _adopt(self, verdicts):
        for owners, apart in verdicts:
            known = {name: owner for name, owner in owners.items() if name in self._forms}
            self._owners |= known
            self._apart.update(apart)
            for name in apart:
                self._owners.pop(name, None)
            self._owners_text = json.dumps(self._owners, separators=(",", ":"))

    def _rule(self, ranks_parts):
        """(owners of what is new, names that differ) of what each rank has, as rank 0 finds."""
        first = ranks_parts[0]
        alike = {
            name
            for name, (form, *_) in first.items()
            if all(name in other and other[name][0] == form for other in ranks_parts[1:])
        }
        apart = sorted(set().union(*ranks_parts) - alike)
        if apart:
            more = f" and {len(apart) - NAMED} more" if len(apart) > NAMED else ""
            logger.warning(
                "libckpt: job %s: %s%s differ(s) between ranks, though DistributedDataParallel "
                "declares them the same: each rank captures its own from now on",
                self._ranks.job, ", ".join(f'"{name}"' for name in apart[:NAMED]), more,
            )  # fmt: skip
        owners, tied = {}, {}
        new = [name for name in alike if name not in self._owners]
        for name in sorted(new, key=lambda name: (-first[name][1], name)):
            (*_, digest), size, place = first[name]
            owner = 0 if digest is None else tied.get(place)
            if owner is None:
                owner = self._loads.index(min(self._loads))
            if place:
                tied.setdefault(place, owner)  # One memory under two names is stored once.
            owners[name] = owner
            self._loads[owner] += size
        return owners, apart

    def _log_once(self, has_tensors):
        if not has_tensors:
            return
        if self._ranks.rank == 0 and not self._has_logged:
            logger.info(
                "libckpt: job %s: each of %d ranks captures all of its items, since nothing in "
                "them is declared the same on all ranks: give the DistributedDataParallel wrapper "
                "itself as the item",
                self._ranks.job, self._ranks.world_size,
            )  # fmt: skip
        self._has_logged = True


def captured_share(sizes, places):
    """How much of its tensors a rank captures, 0 to 1: of parts that other ranks hold, too, and
    that they divide, not all."""
    captured = 0
    for name, size in sizes.items():
        copies = max(1, places[name][5]) if name in places else 1
        captured += -(-size // copies) if size // copies >= STRETCH_BYTES_MIN else size
    return captured / max(1, sum(sizes.values()))
