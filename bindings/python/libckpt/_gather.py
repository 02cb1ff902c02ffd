"""Gather: a restore in which each rank reads its share, and the ranks hand one another the rest.

    the same number of ranks     each its own shard, as the daemons agreed; then the shares go round
    another number of ranks      the newest published step; rank r reads the shards r, r + n, ...

A rank that has no shard of its own takes what is not shared from rank 0's.
"""

import json
import logging
import zlib

from libckpt import _restore, _storage, errors
from libckpt._shares import SHARES

logger = logging.getLogger("libckpt")


class Gather:
    def __init__(self, registration, ranks, directory):
        self._registration = registration
        self._client = registration.client
        self._ranks = ranks
        self._directory = directory
        self._owners = {}  # By name, who captured it for all, as this rank's shard tells.

    def restore(self, step, targets):
        """(answer, structure) of the step; the targets are filled. All ranks call it.

        The answer tells besides what the library's does how many ranks saved the step.
        """
        ranks, structure, failure = self._ranks, None, None
        try:
            answer = self._client.restore(step, targets.choose)
            answer["world_size"] = ranks.world_size
        except (errors.NotFound, errors.Unsupported) as reason:
            answer = self._find_other_world(step, reason)
        try:
            structure = self._read(answer, targets)
        except errors.NotFound as error:  # It is there, so nobody is to begin anew.
            failure = errors.StorageError(str(error))
        except errors.CheckpointError as error:
            failure = error
        ranks.agree("shards", failure)
        self._complete(answer["step"], structure, targets)
        if "path" in answer:
            self._client.start_fresh()  # The daemons know of no restore.
        return answer, structure

    def _find_other_world(self, step, reason):
        """What another number of ranks published; raises the reason when there is nothing."""
        ranks = self._ranks
        if not ranks.can_talk or not self._directory:
            raise reason
        found = ranks.decide("other world", None, lambda _: _published(self._directory, step))
        if found is None or found["world_size"] == ranks.world_size:
            raise reason
        if ranks.rank == 0:
            logger.warning(
                "libckpt: job %s: step %d was saved by %d ranks, this job has %d: it is restored "
                "by names, from all of its shards",
                ranks.job, found["step"], found["world_size"], ranks.world_size,
            )  # fmt: skip
        return found

    def _read(self, answer, targets):
        """The structure of this rank's shard; of another world, the shards are read first."""
        ranks, saved_by = self._ranks, answer["world_size"]
        is_other = "path" in answer
        if is_other:
            targets.of_a_share = True
            own = ranks.rank if ranks.rank < saved_by else 0
            answer.update(self._client.restore_from(answer["path"], own, targets.choose))
        structure = self._registration.structure()
        if structure is None:
            raise errors.Corruption(
                f"restore step {answer['step']}: it does not tell what its tensors are parts of: "
                "it was not saved by this package"
            )
        self._owners = structure.pop(SHARES, {})
        if is_other:
            for shard in range(ranks.rank + ranks.world_size, saved_by, ranks.world_size):
                owned = {name for name, owner in self._owners.items() if owner == shard}
                self._client.restore_from(answer["path"], shard, targets.choose_more(owned))
        return structure

    def _complete(self, step, structure, targets):
        """What other ranks captured comes from them."""
        ranks, failure = self._ranks, None
        nodes = {node["t"]: node for node in _restore.tensor_nodes(structure)}
        shared = {}
        if ranks.are_several:
            shared = self._shared_by_all(nodes)
            nodes |= {name: node for name, (_, node) in shared.items()}
        try:
            targets.complete(step, nodes)
        except errors.CheckpointError as error:
            failure = error
        ranks.agree("places", failure)
        if not ranks.are_several:
            return
        by_source = {}
        for name, (owner, _) in sorted(shared.items()):
            by_source.setdefault(owner % ranks.world_size, []).append(targets.flat_bytes(name))
        for source in sorted(by_source):
            try:
                ranks.broadcast(source, by_source[source])
            except errors.Corruption as error:
                failure = error
        ranks.agree("shares", failure)

    def _shared_by_all(self, nodes):
        """By name, owner and node of the shared tensors that any rank knows of. They are the same
        everywhere, unless a rank did not hear in time what it was to capture, and captured all."""
        owners = sorted(self._owners.items())
        shared = {name: [owner, nodes[name]] for name, owner in owners if name in nodes}
        sums = self._ranks.exchange("plan", zlib.crc32(json.dumps(shared).encode()))
        if len(set(sums)) == 1:
            return shared
        union = {}
        for told in self._ranks.exchange("shared", shared):
            union = told | union
        return union


def _published(directory, step):
    """Where the newest checkpoint is, or that of the step, and how many ranks saved it."""
    for path in reversed(_storage.steps(directory)):
        manifest = _storage.read_manifest(path)
        if manifest is not None and step in (None, manifest["step"]):
            return {
                "path": str(path),
                "step": manifest["step"],
                "world_size": len(manifest["shards"]),
            }
    return None
