"""Restorer: room for the steps of a session, and a step brought into the trainer's items."""

import dataclasses
import logging

from libckpt import _native, errors
from libckpt.core import _arrays, _fill, _gather, _item_kinds, _items, _rebuild, _restore

logger = logging.getLogger("libckpt")

OVERWRITTEN = (
    "the restore overwrote a part of the tensors and then failed: do not train on with them"
)


@dataclasses.dataclass(eq=False)
class Restored:
    """The result of a restore: the step, its source, and the items that were made anew."""

    step: int
    timeline: int
    source: str  # "own_memory", "peer_memory" or "storage".
    source_name: str
    reason: str  # Why this step, and not a newer one.
    bytes: int
    seconds: float
    world_size: int  # The number of ranks that saved it.
    items_of: int  # The rank whose items these are: rank % world_size.
    items: dict

    def __repr__(self):
        return f"Restored(step={self.step}, from {self.source_name})"


class Restorer:
    def __init__(self, registration, ranks, replicas, directory, allow_pickle):
        self._registration, self._ranks, self._replicas = registration, ranks, replicas
        self._gather = _gather.Gather(registration, ranks, directory)
        self._directory = directory
        self._allow_pickle = allow_pickle
        self.warns_of_left = True  # If a restore leaves out items.

    def prepare(self, items, arrays=()):
        """Makes Slots for the items, and for the state that their optimizers will have."""
        _, tensors, members = _items.flatten(items, self._allow_pickle)
        arrays = _arrays.Arrays(arrays, tensors)
        self._make_room(items, tensors, members, 0, None, arrays)

    def restore(self, into, step, strict, arrays=(), path=None):
        """(Restored, whether the daemons know of the restore); `into` and the arrays are filled."""
        try:
            with _item_kinds.state_made(into):
                return self._restore(into, step, strict, arrays, path)
        finally:
            self._registration.forget()

    def _restore(self, into, step, strict, arrays, path):
        flattened = _items.flatten(into, self._allow_pickle)
        _, here, members = flattened
        arrays = _arrays.Arrays(arrays, here)
        arrays.check_writable()
        targets = _restore.Targets(
            into, flattened, arrays, strict, self._ranks.are_several,
            lambda structure: _fill.check(
                into, _rebuild.outline(structure, self._allow_pickle), strict
            ),
        )  # fmt: skip
        # The restore waits for the Slots, and a job that begins need not.
        prepare = self._registration.client.prepare_in_background
        # The newest checkpoint of the directory finds room here.
        directory, rank = self._directory, self._ranks.rank
        room = _native.slot_bytes(directory, rank) if directory else 0
        self._make_room(into, here, members, room, prepare, arrays)
        answer, structure = self._gather.restore(step, targets, arrays, path)
        try:
            values = self._give(into, answer, structure, targets, strict)
        except errors.CheckpointError as error:
            if not into:
                raise
            raise type(error)(f"{error}; {OVERWRITTEN}") from error
        found = {field.name: answer.get(field.name) for field in dataclasses.fields(Restored)}
        return Restored(**{**found, "items": values}), "path" not in answer

    def _make_room(self, items, tensors, members, room_min, prepare, arrays):
        """Slots for the step that is to come."""
        registration = self._registration
        registration.set_places(arrays)
        if self._ranks.are_several:
            optimizers, allow_pickle = registration.optimizers, self._allow_pickle
            room = self._replicas.expected_bytes(items, optimizers, allow_pickle)
            # The arrays are registered so that another number of ranks gets what it asks for.
            views = registration.view(arrays.tensors())
            registration.reserve(views, members, max(room_min, room + arrays.nbytes()), prepare)
            return
        views = registration.view(tensors | arrays.tensors())
        room = max(room_min, registration.expected_bytes(views))
        registration.reserve(views, members, room, prepare)

    def _give(self, into, answer, structure, targets, strict):
        found = targets.tensors(structure)
        values = _rebuild.rebuild(structure, found, targets.members, self._allow_pickle)
        _fill.load(self._replicas.known_here(into, answer), values, strict)
        left = sorted(values.keys() - into.keys())
        # Of another number of ranks, other ones ask for what this rank does not want.
        if answer["world_size"] == self._ranks.world_size or not self._ranks.are_several:
            left += targets.arrays_left
        if left and self.warns_of_left and (into or targets.has_arrays):
            logger.warning(
                "libckpt: restore: the checkpoint also has %s, not given to restore here: saves "
                "without make checkpoints without",
                ", ".join(f'"{name}"' for name in left[:5]),
            )
        replaced = targets.replaced(found)
        if replaced:
            logger.warning(
                "libckpt: restore: %d tensor(s) in containers could not be filled where they are, "
                "new ones stand in their place: %s; they have another type or shape here, or share "
                "memory with what differs there: replace the old ones wherever you hold them",
                len(replaced),
                ", ".join(replaced[:5]),
            )
        return values
