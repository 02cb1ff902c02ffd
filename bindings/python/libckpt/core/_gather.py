"""Gather: a restore in which each rank reads its share, and the ranks hand one another the rest.

    from memory, or what the     as the daemons agreed: each rank its own shard; of another number,
    same number published        rank r the shards r, r + n, ..., and the arrays it asks for
    what another number          the newest published step that is whole and that no restore has
    published                    abandoned; rank r reads the shards r, r + n, ...

Then the shares go round.

A rank that has no shard of its own takes what is not shared from that of its rank modulo their
number.
"""

import json
import logging
import zlib

from libckpt import _native, errors
from libckpt.core import _structure
from libckpt.core._ranks import counted
from libckpt.core._replicas import SHARES

logger = logging.getLogger("libckpt")

UNSEEN = (
    "the daemon has opened this directory, and there is none here: it was removed, or only the "
    "daemon sees it, as from another container; checkpoints come to where the daemon sees it"
)


class Gather:
    def __init__(self, registration, ranks, directory):
        self._registration = registration
        self._client = registration.client
        self._ranks = ranks
        self._directory = directory
        self._owners = {}  # By name, the rank that captured it for all, as this rank's shard says.

    def restore(self, wish, targets, arrays):
        """(answer, structure) of the step that the wish names or of the newest; the targets are
        filled. All ranks call it.

        The answer is the library's, with the rank whose items these are.
        """
        if wish.path is not None:
            found = self._ranks.decide("published", None, lambda _: _candidates(wish.path))
            if found["failure"]:
                raise getattr(errors, found["failure"][0])(found["failure"][1])
            # The job may have steps of its own: to abandon these is its user's to say.
            return self._read_published(found["checkpoints"], targets, arrays)
        try:
            choose = targets.names.choice(targets.choose)
            answer = self._client.restore(wish.step, choose, wish.source)
        except (errors.NotFound, errors.Unsupported, errors.Corruption) as reason:
            if wish.source == "memory":
                raise
            return self._restore_published(wish.step, targets, arrays, reason)
        answer["items_of"] = self._ranks.rank % answer["world_size"]
        structure, failure = self._try_to_read(answer, targets, arrays)
        self._ranks.agree("shards", failure)
        self._complete(answer, structure, targets)
        return answer, structure

    def _restore_published(self, step, targets, arrays, reason):
        """The newest whole one that any number of ranks published, by names."""
        found = self._read_published(self._find_published(step, reason), targets, arrays)
        if targets.wants_tensors:
            self._client.start_fresh()  # The daemons know of no restore.
        return found

    def _read_published(self, answers, targets, arrays):
        ranks, damaged, overwritten = self._ranks, [], set()
        for answer in answers:
            structure, failure = self._try_to_read(answer, targets, arrays)
            failures = ranks.failures("shards", failure)
            damage = [each for each in failures if each[1] == errors.Corruption.__name__]
            if failures and failures == damage:  # The files are the same for all ranks.
                damaged.append(f"step {answer['step']} is passed over: {damage[0][2]}")
                overwritten |= targets.placed.keys()
                if ranks.rank == 0:
                    logger.warning("libckpt: job %s: %s", ranks.job, damaged[-1])
                continue
            ranks.raise_for(failures, failure)
            self._warn_of_other_ranks(answer)
            self._complete(answer, structure, targets)
            left = None
            if not overwritten <= targets.placed.keys():
                left = errors.StorageError(
                    f"restore step {answer['step']}: it lacks "
                    f"{', '.join(sorted(overwritten - targets.placed.keys())[:5])}, which a newer "
                    "one, that is damaged, may have overwritten; do not train on with them"
                )
            ranks.agree("remains", left)
            return answer, structure
        raise errors.Corruption("restore: no checkpoint is whole: " + "; ".join(damaged))

    def _find_published(self, step, reason):
        """Newest first; raises the reason when the daemons had all there is."""
        ranks, directory = self._ranks, self._directory
        if not ranks.can_talk or not directory:
            raise reason
        is_damage = isinstance(reason, errors.Corruption)
        found = ranks.decide(
            "published",
            is_damage,
            lambda said: _published(directory, step, ranks.world_size, any(said)),
        )
        if ranks.rank == 0:
            for damage in found["damage"]:
                logger.warning("libckpt: job %s: %s: %s", ranks.job, directory, damage)
            if found["newer"]:
                logger.warning(
                    "libckpt: job %s: step %d, which is newer, is abandoned only when a step of "
                    "these ranks is published: until then a restart begins with it",
                    ranks.job, found["newer"][0],
                )  # fmt: skip
        if found["checkpoints"] and found["history_lost"] and step is None:
            raise errors.Corruption(
                f"restore: the history of the job's timelines is lost ({found['history_lost']}), "
                f"and step {found['checkpoints'][0]['step']} may be one that a restore to an older "
                "step abandoned: restore a step by its number"
            ) from reason
        if found["checkpoints"]:
            return found["checkpoints"]
        if found["abandoned"]:
            # A step that was named is there, and its user has left it.
            is_left = step is not None and isinstance(reason, errors.NotFound)
            raise (errors.Unsupported if is_left else type(reason))(
                f"{reason}; step {found['abandoned'][0]} was abandoned by a restore to an older one"
            ) from reason
        raise reason

    def _warn_of_other_ranks(self, answer):
        ranks = self._ranks
        if ranks.rank == 0 and answer["world_size"] != ranks.world_size:
            logger.warning(
                "libckpt: job %s: step %d was saved by %s, this job has %d: it is restored by "
                "names, from all of its shards",
                ranks.job, answer["step"], counted(answer["world_size"]), ranks.world_size,
            )  # fmt: skip

    def _try_to_read(self, answer, targets, arrays):
        """(structure, failure): one of them."""
        try:
            return self._read(answer, targets, arrays), None
        except errors.NotFound as error:  # It is there, so nobody is to begin anew.
            return None, errors.StorageError(str(error))
        except errors.CheckpointError as error:
            return None, error

    def _read(self, answer, targets, arrays):
        """The structure of this rank's shard; of another world, the shards are read first."""
        ranks, saved_by = self._ranks, answer["world_size"]
        is_other = "path" in answer
        if is_other:
            targets.of_a_share = targets.leaves_arrays = True
            own = ranks.rank % saved_by
            found = answer["step"], answer["timeline"]
            choose = targets.names.choice(targets.choose)
            answer.update(self._client.restore_from(answer["path"], own, choose))
            answer["items_of"] = own
            if found != (answer["step"], answer["timeline"]):
                raise errors.StorageError(
                    f"restore step {found[0]}: rank {ranks.rank} sees another checkpoint at "
                    f"{answer['path']}: all nodes must see the same directory"
                )
        structure = targets.structure
        if structure is None:
            raise errors.Corruption(
                f"restore step {answer['step']}: it does not say which items its tensors are parts "
                "of: it was not saved by this package: the tensors are in its safetensors files"
            )
        self._owners = structure.pop(SHARES, {})
        if is_other and not targets.wants_tensors:
            choose = targets.names.choice(targets.choose_more)
            for shard in range(saved_by):
                if shard != own and targets.lacks():
                    self._client.restore_from(answer["path"], shard, choose)
        if is_other and targets.wants_tensors:
            for shard in range(ranks.rank + ranks.world_size, saved_by, ranks.world_size):
                owned = {name for name, owner in self._owners.items() if owner == shard}
                choose = targets.names.choice(targets.choose_more(owned))
                self._client.restore_from(answer["path"], shard, choose)
            choose = targets.names.choice(targets.choose_more(()))
            targets.unasked.look_everywhere(
                saved_by, lambda shard: self._client.restore_from(answer["path"], shard, choose)
            )
            arrays.leave_out([*targets.parts_to_leave_out(), *targets.unasked.missing])
            if arrays:
                self._registration.register_only(targets.names.arrays(arrays))
                self._client.restore_pieces(answer["path"])
        return structure

    def _complete(self, answer, structure, targets):
        """Fetches from other ranks the items that they captured."""
        if not targets.wants_tensors:
            return
        ranks, step, failure = self._ranks, answer["step"], None
        nodes = {node["t"]: node for node in _structure.tensor_nodes(structure)}
        targets.unasked.settle(ranks, answer, nodes.keys(), targets.has_wishes)
        shared, own = {}, set()
        if ranks.are_several:
            shared = self._shared_by_all(nodes)
            nodes |= {name: node for name, (_, node) in shared.items()}
            # This rank captured these itself, since it knew that the ranks differ in them.
            own = {name for name in shared if name not in self._owners and targets.has(name)}
        try:
            self._check_owned(step, shared, targets)
            sources = {name: owner % ranks.world_size for name, (owner, _) in shared.items()}
            targets.complete(step, nodes, sources)
        except errors.CheckpointError as error:
            failure = error
        ranks.agree("places", failure)
        if not ranks.are_several:
            return
        by_source = {}
        for name, (owner, _) in sorted(shared.items()):
            source, part = owner % ranks.world_size, targets.flat_bytes(name)
            is_kept = name in own and source != ranks.rank
            by_source.setdefault(source, []).append(part.clone() if is_kept else part)
        try:
            ranks.hand_round(by_source)
        except errors.Corruption as error:
            failure = error
        ranks.agree("shares", failure)

    def _check_owned(self, step, shared, targets):
        """No rank hands out what it did not capture."""
        ranks = self._ranks
        for name, (owner, _) in shared.items():
            if owner % ranks.world_size == ranks.rank and not targets.has(name):
                raise errors.Corruption(
                    f'restore step {step}: tensor "{name}" was to be captured by rank {owner} for '
                    "all, which did not have it: restore an older step by its number"
                )

    def _shared_by_all(self, nodes):
        """By name, owner and node of the shared tensors that any rank knows of. They are the same
        everywhere, unless a rank did not hear in time what it was to capture, and captured all."""
        owners = sorted(self._owners.items())
        shared = {name: [owner, nodes[name]] for name, owner in owners if name in nodes}
        sums = self._ranks.exchange("plan", zlib.crc32(json.dumps(shared).encode()))
        if len(set(sums)) == 1:
            return shared
        union = {}
        for others in self._ranks.exchange("shared", shared):
            union = others | union
        return union


def _candidates(path):
    """The checkpoints that a path may mean, the best first, or why there is none. One rank looks
    for all."""
    try:
        found, damage, history_lost = _native.published(path)
    except errors.CheckpointError as error:
        return {"failure": [type(error).__name__, str(error)]}
    living = [each for each in found if not each["is_abandoned"]]
    if history_lost and found:
        return {"failure": ["Corruption", f"restore from {path}: the history of its timelines is "
                            f"not known ({history_lost}): name the checkpoint itself"]}  # fmt: skip
    if not living:
        kind = "Corruption" if damage else "NotFound"
        return {"failure": [kind, "; ".join([f"no complete checkpoint in {path}", *damage])]}
    newer = found[: found.index(living[0])]
    reasons = [*damage, *(f"{each['path']}: abandoned by a restore to an older step"
                          for each in newer)]  # fmt: skip
    if reasons:
        logger.warning("libckpt: restore from %s: takes %s; passed over: %s", path,
                       living[0]["path"], "; ".join(reasons[:5]))  # fmt: skip
    return {"failure": None, "checkpoints": living}


def _published(directory, step, world_size, is_damage):
    """Newest first the checkpoints to restore, or those of the step; and the damaged ones."""
    try:
        found, damage, history_lost = _native.published(directory)
    except errors.CheckpointError as error:  # All ranks wait for this answer.
        nothing = dict.fromkeys(("checkpoints", "abandoned", "newer"), [])
        said = UNSEEN if isinstance(error, errors.NotFound) else str(error)
        return nothing | {"damage": [said], "history_lost": ""}
    wanted = [each for each in found if step in (None, each["step"])]
    living = [each for each in wanted if not each["is_abandoned"]]
    # The daemons restore the steps of this number of ranks: they tried, or would not have it.
    theirs = [each["world_size"] == world_size for each in living]
    if all(theirs if is_damage else theirs[:1]):
        living = []
    newer = found[: found.index(living[0])] if living else []
    return {
        "checkpoints": living,
        "abandoned": [each["step"] for each in wanted if each["is_abandoned"]],
        "newer": [each["step"] for each in newer if not each["is_abandoned"]],
        "damage": damage,
        "history_lost": history_lost,
    }
