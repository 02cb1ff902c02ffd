"""Names: those of the arrays that chunks of a state dict are captured as."""

import collections
import dataclasses

# DCP has each chunk from one rank only. A whole tensor with copy 0 would be that rank's own.
COPY = 1


@dataclasses.dataclass
class OfWriters:
    """The `storage_data` of a plan, for both writers: a planner that caches plans, as
    DefaultSavePlanner(enable_plan_caching=True), hands one writer the plan that it made for the
    other."""

    prefix: str  # In front of a folder's files, as DCP's own writer wants it.
    several: list


def of_writers(plans):
    """The plans of all ranks, each for either writer."""
    found = several(plans)
    return [dataclasses.replace(plan, storage_data=OfWriters(f"__{rank}_", found))
            for rank, plan in enumerate(plans)]  # fmt: skip


def several_in(plan):
    """The same of a rank's final plan. One that was cached for another writer than these knows of
    its own rank alone."""
    data = plan.storage_data
    return set(data.several if isinstance(data, OfWriters) else several([plan]))


def several(plans):
    """The tensors of which a rank has more than one chunk: each is an array of its own there.
    `plans`: of all ranks."""
    found = set()
    for plan in plans:
        counts = collections.Counter(item.index.fqn for item in plan.items)
        found.update(fqn for fqn, count in counts.items() if count > 1)
    return sorted(found)


def of_chunk(fqn, offset, is_one_of_several):
    """The tensor's own name, so that its chunks are found as parts of one tensor."""
    if is_one_of_several:
        return f"{_plain(fqn)}@{','.join(map(str, offset))}"
    return _plain(fqn)


def of_object(fqn):
    return f"{_plain(fqn)}@object"


def _plain(fqn):
    """Without what has a meaning in names of the core."""
    return fqn.replace("//", "/%2F").replace("libckpt.", "libckpt%2E")
