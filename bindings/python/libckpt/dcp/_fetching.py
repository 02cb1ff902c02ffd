"""Fetching: a load of DCP from the memory of a job, its peers or its storage.

    metadata    rank 0 has it among its items, and sends it to the other ranks
    the same number of ranks as saved    each rank gets back what it captured, and sends to the
                others what DCP's plan wants of it
    another number    libckpt brings each rank the boxes that it wants, whichever ranks saved them

Then the plan's parts are copied to where DCP wants them.
"""

import io

from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from libckpt import errors
from libckpt.core import _resuming
from libckpt.dcp import _boxes, _document, _exchange
from libckpt.dcp._boxes import Box
from libckpt.dcp._capturing import check_ranks
from libckpt.dcp._document import ITEM, Document

ANY = -1  # Any rank that has it.


class Found:
    """A step of a job, on this rank."""

    def __init__(self, job, restored, document, source):
        self.job, self.step, self.document = job, restored.step, document
        # For the rest of it.
        self.source = _resuming.source_again(source, restored, job.session)
        self.source_name, self.newest_seen = restored.source_name, restored.newest_seen
        self._saves = job.saves

    def is_of_now(self):
        """Whether nothing was saved since, which may be newer."""
        return self._saves == self.job.saves

    @property
    def is_of_as_many(self):
        return self.document.world_size == self.job.session.world_size


def find(job, wanted):
    """The step of the Id, or the newest one, as a Found. All ranks call it. Raises NotFound."""
    session, text, failure = job.session, None, None
    job.has_asked = True
    job.check_open(wanted.step)
    restored = session.restore(step=wanted.step, source=wanted.source)
    if session.rank == 0:
        stored = restored.items.get(ITEM)
        if stored is None:
            failure = errors.InvalidArgument(
                f"dcp: step {restored.step} of job {job.name} was not saved by DCP: restore it "
                "with the session that saved it, or give another job"
            )
        else:
            text = bytes(stored.numpy()).decode().rstrip()
    session.ranks.agree("metadata", failure)
    text = session.ranks.decide("metadata of DCP", text, lambda said: said[0])
    return Found(job, restored, Document(text), wanted.source)


class Fetch:
    """One load, on this rank."""

    def __init__(self, found):
        self._found, self._document = found, found.document
        self._session = found.job.session

    def metadata(self):
        return self._document.metadata()

    def set_up_storage_reader(self, metadata, is_coordinator, **options):
        check_ranks(self._session, is_coordinator, **options)

    def prepare_global_plan(self, plans):
        """On the coordinator: gives each rank the lists of what it sends and gets."""
        if self._found.is_of_as_many:
            wanted = [self._places(plan) for plan in plans]
            transfers = _exchange.transfers(wanted)
            for rank, plan in enumerate(plans):
                plan.storage_data = [each for each in transfers if rank in (each[1], each[2])]
        return plans

    def read_data(self, plan, planner):
        parts = list(zip(plan.items, self._places(plan), strict=True))
        is_of_as_many, rank = self._found.is_of_as_many, self._session.rank
        transfers = plan.storage_data or []
        # By rank and name of what was captured; or by name alone, whichever rank it comes from.
        boxes = self._captured(transfers, parts) if is_of_as_many else _wanted(parts)
        targets = {item: planner.resolve_tensor(item).detach()
                   for item in plan.items if item.type == LoadItemType.TENSOR}  # fmt: skip
        ways = [(item, place, boxes.get(_key(place, is_of_as_many))) for item, place in parts]
        _boxes.offer([(box, targets[item], _begin(item, place), item.lengths)
                      for item, place, box in ways if item in targets])  # fmt: skip
        own = {name: box for (source, name), box in boxes.items() if source in (rank, ANY)}
        arrays = [box.array(name) for name, box in own.items()]
        self._session.restore(step=self._found.step, arrays=arrays, source=self._found.source)
        if is_of_as_many:
            contents = {key: box.bytes() for key, box in boxes.items()}
            _exchange.run(self._session.ranks, transfers, contents)
        _boxes.check_shared([(item.dest_index.fqn, targets[item],
                              box.part(_begin(item, place), item.lengths))
                             for item, place, box in ways if item in targets])  # fmt: skip
        for item, place, box in ways:
            if item in targets:
                _fill(item, targets[item], box.part(_begin(item, place), item.lengths))
                planner.commit_tensor(item, targets[item])
            else:
                planner.load_bytes(item, _content(place.stored, box))
        if rank == 0:
            _resuming.log_restored(self._found)
        future = Future()
        future.set_result(None)
        return future

    def _places(self, plan):
        return [self._document.place(item.storage_index) for item in plan.items]

    def _captured(self, transfers, parts):
        """Parts that this rank captured for itself or another one, and parts that it is sent."""
        rank = self._session.rank
        by_key = self._document.by_rank_and_name()
        wanted = {_key(place, True) for _, place in parts if place.name}
        sent = {(source, name) for name, source, _ in transfers if source == rank}
        return {key: Box.of(by_key[key]) for key in sorted(wanted | sent)}


def _key(place, is_of_as_many):
    return (place.rank if is_of_as_many else ANY, place.name)


def _wanted(parts):
    """The parts of each array that this rank wants."""
    boxes = {}
    for item, place in parts:
        key = _key(place, False)
        begin, lengths = place.begin, place.sizes
        if item.type == LoadItemType.TENSOR:
            begin, lengths = _begin(item, place), item.lengths
        if key in boxes:
            boxes[key].grow(begin, lengths)
        elif place.name:
            boxes[key] = Box(place, begin, lengths)
    return boxes


def _begin(item, place):
    """The begin of the item's part in the array that has it."""
    return [b + o for b, o in zip(place.begin, item.storage_offsets, strict=True)]


def _content(stored, box):
    """An object as a planner wants it: bytes that torch.load reads."""
    if stored.form == "torch":
        return io.BytesIO(bytes(box.memory[: stored.length].numpy()))
    text = bytes(box.memory[: stored.length].numpy()).decode() if stored.name else stored.text
    return _document.bytes_of(text)


def _fill(item, target, part):
    if part.shape != target.shape:
        raise errors.InvalidArgument(
            f'dcp: load "{item.dest_index.fqn}": {list(part.shape)} was saved and '
            f"{list(target.shape)} is wanted"
        )
    if part.data_ptr() != target.data_ptr():
        target.copy_(part)
