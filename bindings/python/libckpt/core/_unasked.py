"""Unasked: arrays of a step that nobody asked for. A save of what was restored is without them.

A rank alone does not know what the others ask for. Parts count as the tensor that they belong to,
which has other parts for other ranks.
"""

from libckpt import errors
from libckpt.core import _registration
from libckpt.core._replicas import SHARES


class Unasked:
    """Names of tensors: those that one rank asks for, and those that it sees in a step."""

    def __init__(self, arrays, strict):
        self._tensors = arrays.tensor_names()  # By the name of an array.
        self.asked = set(self._tensors.values())
        self._given, self._may_lack = arrays.given(), not strict
        self.left, self.missing = [], []  # Those that were not asked for, and that are not there.
        self.to_log = []  # Of `left`, those that this rank is to warn of.
        self._seen, self._left = set(), set()
        self._in_parts = set()  # Of `_left`, those of which there are parts.
        self._whole = []  # Asked for, and in the rank's own shard as a whole.

    def begin(self, stored, of_others, own):
        """The arrays that were given and are not in the rank's own shard, under their very names.

        `stored`, `of_others`: the tensors of the rank's own shard, and of further ones by rank,
        whose names only came where nobody here wants a part. `own`: the arrays in its own shard.
        """
        self._left, self._in_parts = set(), set()
        for each in own:
            self._leave(each)
        self._whole = [name for name, *_, whole in stored if whole is None and name in self.asked]
        self._seen = {tensor_of(each) for each in stored}
        for tensors in of_others.values():
            self._seen |= {tensor_of(each) for each in tensors}
        self.missing = sorted(self._unseen()) if self._may_lack else []
        return self._given.difference(self.missing, (name for name, *_ in stored))

    def see(self, stored, structures):
        """A further shard; `structures`: of the items that are known."""
        items = [name for each in structures for name in each or () if name != SHARES]
        self._seen |= {tensor_of(each) for each in stored}
        for each in stored:
            name, *_, whole = each
            is_of_item = any(f"{name}.".startswith(f"{item}.") for item in items)
            is_other = is_of_item or "//" in name or name == _registration.ROOM
            if whole is not None or not is_other:
                self._leave(each)

    def _leave(self, stored):
        if (tensor := tensor_of(stored)) not in self.asked:
            self._left.add(tensor)
            if stored[4] is not None:
                self._in_parts.add(tensor)

    def _unseen(self):
        return {name for name in self._given if self._tensors[name] not in self._seen}

    def look_everywhere(self, shards, look):
        """Finds what is missing, if it may be; `look(shard)` lets this see the shard."""
        for shard in range(shards):
            if self._may_lack and self._unseen():
                look(shard)
        self.missing = sorted(self._unseen()) if self._may_lack else []

    def settle(self, ranks, answer, tensors_of_items, has_wishes):
        """Leaves in `left` what no rank asked for, where the ranks can say. All ranks call it."""
        self.left = sorted(self._left - tensors_of_items)
        self.to_log = self.left if has_wishes else []
        if not ranks.can_talk:
            return
        is_own = "path" not in answer and answer["world_size"] == ranks.world_size
        # As many ranks as saved it go on with their own whole arrays.
        kept = [name for name in self.left if is_own and name not in self._in_parts]
        others = sorted(set(self.left).difference(kept))
        shard = answer["items_of"] if self._whole and not is_own else None
        left, is_asked, may_be_several = ranks.decide("left", [others, has_wishes, shard], _union)
        several = []
        if may_be_several:
            several = ranks.decide("whole", [self._whole, answer["items_of"]], _of_several)
        if several:
            raise errors.Unsupported(
                f'restore step {answer["step"]}: array "{several[0]}" was saved as a whole by '
                "several ranks, and there is another number of ranks now, which have overwritten "
                "theirs: do not train on with them; save copies with a number each (`copy`)"
            )
        if left:
            own = [name for name in left if name in self.asked]
            taken = set(ranks.decide("taken", own, lambda said: sorted(set().union(*said))))
            left = [name for name in left if name not in taken]
        self.left = sorted(kept + left)
        to_log = left if is_asked and ranks.rank == 0 else []
        self.to_log = sorted(to_log + kept if has_wishes else to_log)


def tensor_of(stored):
    """The name of the tensor that it is a part of, or its own."""
    name, *_, whole = stored
    return name if whole is None else whole[0]


def _union(said):
    names = set().union(*(names for names, *_ in said))
    shards = {shard for *_, shard in said if shard is not None}
    return sorted(names), any(has_wishes for _, has_wishes, _ in said), len(shards) > 1


def _of_several(said):
    shards = {}  # By the name of an array, those that have it as a whole.
    for whole, shard in said:
        for name in whole:
            shards.setdefault(name, set()).add(shard)
    return sorted(name for name, each in shards.items() if len(each) > 1)
