"""OtherRanks: tensors of further shards, which come with a rank's own from another number of ranks.
"""

from libckpt import errors
from libckpt.core._replicas import SHARES

PREFIX = "libckpt.rank."  # Before the number of the rank, a slash, and the name that it saved.


def apart(name):
    """(what says of which rank the tensor is, the name that it saved)."""
    if not name.startswith(PREFIX):
        return "", name
    rank, _, own = name.removeprefix(PREFIX).partition("/")
    return f"{PREFIX}{rank}/", own


def split(stored):
    """The tensors of the rank's own shard, and those of others by rank."""
    own, of_others = [], {}
    for tensor in stored:
        if tensor[0].startswith(PREFIX):
            rank, _, name = tensor[0].removeprefix(PREFIX).partition("/")
            alias = tensor[3].removeprefix(f"{PREFIX}{rank}/") if tensor[3] else tensor[3]
            of_others.setdefault(int(rank), []).append((name, *tensor[1:3], alias, *tensor[4:]))
        else:
            own.append(tensor)
    return own, of_others


def choose(of_others, structure, choose_own):
    """The tensors that each of them captured for all, chosen as `choose_own(tensors)` says."""
    owners = (structure or {}).get(SHARES, {})
    chosen = []
    for rank, stored in of_others.items():
        owned = [tensor for tensor in stored if owners.get(tensor[0]) == rank]
        chosen += [(f"{PREFIX}{rank}/{name}", *place) for name, *place in choose_own(owned)]
    return chosen


def check_whole(step, arrays, stored, of_others):
    """Raises Unsupported for an array that several ranks saved as a whole: it is each one's own."""
    for name in arrays if of_others else ():
        shards = [stored, *of_others.values()]
        holders = [shard for shard in shards
                   if any(each[0] == name and each[4] is None for each in shard)]  # fmt: skip
        if len(holders) > 1:
            raise errors.Unsupported(
                f'restore step {step}: array "{name}" was saved as a whole by several ranks, and '
                "there is another number of ranks now: nothing says whether these are copies, or "
                "which rank goes on with which; save copies with a number each (`copy`)"
            )


def choose_arrays(step, names, of_others, target):
    """Arrays that one of them captured as a whole, which is no part of anything."""
    chosen = []
    for name in sorted(names):
        holders = [rank for rank, stored in of_others.items() if any(name == t[0] for t in stored)]
        if not holders:
            raise errors.InvalidArgument(
                f'restore step {step}: it has no array "{name}": give those that were saved'
            )
        _, *place = target(name)
        chosen.append((f"{PREFIX}{holders[0]}/{name}", *place))
    return chosen
