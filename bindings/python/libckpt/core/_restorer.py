"""Restorer: room for the steps of a session, and a step brought into the trainer's items."""

import dataclasses
import logging

from libckpt import _native, errors
from libckpt.core import _arrays, _compare, _fill, _gather, _item_kinds, _items, _names
from libckpt.core import _new_arrays, _rebuild, _restore, _shapes

logger = logging.getLogger("libckpt")

OVERWRITTEN = (
    "the restore overwrote a part of the tensors and then failed: do not train on with them"
)


def may_have_overwritten(error):
    """Whether a restore may have failed when some tensors had its values already. The library's own
    errors say so; of any other, as one that a user's object raised, nobody knows."""
    is_known = isinstance(error, errors.CheckpointError)
    return not is_known or OVERWRITTEN.partition(" and then")[0] in str(error)


@dataclasses.dataclass(eq=False)
class Restored:
    """The result of a restore: the step, its source, and the items that were made anew."""

    step: int
    timeline: int
    source: str  # "own_memory", "peer_memory" or "storage".
    source_name: str
    reason: str  # Why this step, and not a newer one.
    # The newest step that training is known to have reached before: those after `step` are lost.
    # None: not known.
    newest_seen: int | None
    bytes: int
    bytes_from_storage: int  # Part of these; the rest came from memory.
    seconds: float
    world_size: int  # The number of ranks that saved it.
    items_of: int  # The rank whose items these are: rank % world_size.
    items: dict
    # Names of tensors. Without strict: those here that the step lacks; those there that nothing
    # here takes; and those of another type or shape, each with both as text. Arrays that no rank
    # takes are `unexpected` with strict, too.
    missing: list
    unexpected: list
    mismatched: dict
    # By name: new arrays in the place of names in `arrays`; where shapes only were asked for, those
    # of arrays of which this rank's shard has a part.
    arrays: dict

    def __repr__(self):
        return f"Restored(step={self.step}, from {self.source_name})"


@dataclasses.dataclass(eq=False)
class Wish:
    """The arguments of a restore; see Session.restore."""

    into: dict
    step: int | None = None
    strict: bool = True
    arrays: object = ()
    path: str | None = None
    renamed: dict | None = None
    shapes_only: bool = False
    source: str | None = None
    is_beginning: bool = False  # Other training begins with it, and wants no more of it.

    def __post_init__(self):
        if self.shapes_only and (self.into or self.arrays):
            raise errors.InvalidArgument(
                "restore: shapes_only fills nothing: give no items and no arrays with it"
            )

    def of_other_training(self):
        return dataclasses.replace(self, is_beginning=True)


class Restorer:
    def __init__(self, registration, ranks, replicas, directory, allow_pickle):
        self._registration, self._ranks, self._replicas = registration, ranks, replicas
        self._gather = _gather.Gather(registration, ranks, directory)
        self._directory = directory
        self._allow_pickle = allow_pickle
        self.warns_of_left = True  # If a restore leaves out items.
        self.makes_room = True  # For the saves that are to come.

    def prepare(self, items, arrays=()):
        """Makes Slots for the items, and for the state that their optimizers will have."""
        _, tensors, members = _items.flatten(items, self._allow_pickle)
        arrays = _arrays.Arrays(arrays, tensors)
        self._make_room(items, tensors, members, 0, None, arrays)

    def restore(self, wish):
        """(Restored, whether the daemons know of the restore); the wish's items are filled."""
        names = _names.Names(wish.renamed, wish.into)
        if wish.shapes_only:
            return self._shapes(wish, _shapes.Shapes(names))
        try:
            wish, new = self._with_new_arrays(wish, names)
            with _item_kinds.state_made(wish.into):
                return self._restore(wish, names, new)
        except errors.Unavailable as error:
            if (explained := self._ranks.explained(error)) is error:
                raise
            raise explained from None
        finally:
            self._registration.forget()

    def _with_new_arrays(self, wish, names):
        """The wish with arrays for those that it only names; and the new ones by name."""
        new, answer = _new_arrays.NewArrays(wish.arrays), None
        new.check(self._ranks, wish.path)
        if new:
            targets = new.shapes(names)
            answer, structure = self._gather.restore(wish, targets, ())
            new.make(self._ranks, answer, targets.arrays(structure))
        return new.wish_of(wish, answer), new.by_name()

    def _shapes(self, wish, targets):
        answer, structure = self._gather.restore(wish, targets, ())
        return self._answer(answer, targets, *targets.values(structure, self._allow_pickle))

    def _restore(self, wish, names, new):
        into, strict = wish.into, wish.strict
        flattened = _items.flatten(into, self._allow_pickle)
        _, here, members = flattened
        arrays = _arrays.Arrays(wish.arrays, here)
        arrays.check_writable()
        targets = _restore.Targets(
            into, flattened, arrays, strict, names, self._ranks.are_several,
            lambda structure: _fill.check(
                into, _rebuild.outline(structure, self._allow_pickle), strict
            ),
        )  # fmt: skip
        if self.makes_room:
            self._make_room_here(into, here, members, arrays, names)
        answer, structure = self._gather.restore(wish, targets, arrays)
        targets.differences.missing += targets.unasked.missing
        targets.differences.unexpected += targets.unasked.left
        self._registration.set_places(arrays)  # By their names here again.
        try:
            values = self._give(wish, answer, structure, targets)
        except errors.CheckpointError as error:
            if not into:
                raise
            raise type(error)(f"{error}; {OVERWRITTEN}") from error
        return self._answer(answer, targets, values, new)

    def _answer(self, answer, targets, values, arrays=None):
        found = {field.name: answer.get(field.name) for field in dataclasses.fields(Restored)}
        more = {"items": values, "arrays": arrays or {}, **vars(targets.differences)}
        return Restored(**{**found, **more}), "path" not in answer

    def _make_room_here(self, into, here, members, arrays, names):
        # The restore waits for the Slots, and a job that begins need not.
        prepare = self._registration.client.prepare_in_background
        # The newest checkpoint of the directory finds room here.
        directory, rank = self._directory, self._ranks.rank
        room = _native.slot_bytes(directory, rank) if directory else 0
        whole = {name: tensor for name, tensor in here.items() if name not in arrays}
        self._make_room(into, whole, members, room, prepare, names.arrays(arrays))

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

    def _give(self, wish, answer, structure, targets):
        into, strict = wish.into, wish.strict
        found = targets.tensors(structure)
        values = _rebuild.rebuild(structure, found, targets.members, self._allow_pickle)
        _fill.load(self._replicas.known_here(into, answer), values, strict)
        left = sorted(values.keys() - into.keys()) if targets.has_wishes else []
        left += targets.unasked.to_log
        if left and self.warns_of_left and not wish.is_beginning:
            logger.warning(
                "libckpt: restore: the checkpoint also has %s, not given to restore here: saves "
                "without make checkpoints without",
                ", ".join(f'"{name}"' for name in left[:5]),
            )
        for what, names in _compare.grouped(targets.differences).items():
            logger.warning("libckpt: restore: %d tensor(s) %s: %s", len(names), what,
                           _compare.listed(names))  # fmt: skip
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
