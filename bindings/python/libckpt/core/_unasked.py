"""Unasked: arrays of a step that nobody asked for. A save of what was restored is without them.

A rank alone does not know what the others ask for.
"""

from libckpt import errors
from libckpt.core import _registration
from libckpt.core._replicas import SHARES


class Unasked:
    """Names of arrays: those that one rank asks for, and those that it sees in a step."""

    def __init__(self, arrays, strict):
        self.asked = arrays.tensors().keys()
        self._given, self._may_lack = arrays.given(), not strict
        self.left, self.missing = [], []  # Those that were not asked for, and that are not there.
        self.to_log = []  # Of `left`, those that this rank is to warn of.
        self._seen, self._left = set(), set()
        self._whole = []  # Asked for, and in the rank's own shard as a whole.

    def begin(self, stored, of_others, own):
        """`stored`, `of_others`: the tensors of the rank's own shard, and of further ones by rank,
        whose names only came where nobody here wants a part. `own`: the arrays in its own shard."""
        self._left = {name for name in own if name not in self.asked}
        self._seen, self.missing = {name for name, *_ in stored}, []
        self._whole = [name for name, *_, whole in stored if whole is None and name in self.asked]
        others = {name for each in of_others.values() for name, *_ in each}
        away = self._given - self._seen
        if self._may_lack:
            self.missing = sorted(away - others)
        self._seen |= others
        return away.difference(self.missing)

    def see(self, stored, structures):
        """A further shard; `structures`: of the items that are known."""
        items = [name for each in structures for name in each or () if name != SHARES]
        self._seen |= {name for name, *_ in stored}
        for name, _, _, _, whole in stored:
            is_of_item = any(f"{name}.".startswith(f"{item}.") for item in items)
            is_other = is_of_item or "//" in name or name == _registration.ROOM
            if name not in self.asked and (whole is not None or not is_other):
                self._left.add(name)

    def look_everywhere(self, shards, look):
        """Finds what is missing, if it may be; `look(shard)` lets this see the shard."""
        for shard in range(shards):
            if self._may_lack and self._given - self._seen:
                look(shard)
        self.missing = sorted(self._given - self._seen) if self._may_lack else []

    def settle(self, ranks, answer, tensors_of_items, has_wishes):
        """Leaves in `left` what no rank asked for, where the ranks can say. All ranks call it."""
        self.left = sorted(self._left - tensors_of_items)
        self.to_log = self.left if has_wishes else []
        is_own = "path" not in answer and answer["world_size"] == ranks.world_size
        if is_own or not ranks.can_talk:
            return
        mine = [self.left, has_wishes, answer["items_of"] if self._whole else None]
        self.left, is_asked, may_be_several = ranks.decide("left", mine, _union)
        several = []
        if may_be_several:
            several = ranks.decide("whole", [self._whole, answer["items_of"]], _of_several)
        if several:
            raise errors.Unsupported(
                f'restore step {answer["step"]}: array "{several[0]}" was saved as a whole by '
                "several ranks, and there is another number of ranks now, which have overwritten "
                "theirs: do not train on with them; save copies with a number each (`copy`)"
            )
        if self.left:
            own = [name for name in self.left if name in self.asked]
            taken = set(ranks.decide("taken", own, lambda said: sorted(set().union(*said))))
            self.left = [name for name in self.left if name not in taken]
        self.to_log = self.left if is_asked and ranks.rank == 0 else []


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
