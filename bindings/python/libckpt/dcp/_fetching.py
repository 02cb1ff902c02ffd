"""Fetching: a load of DCP from the memory of a job, its peers or its storage.

    metadata    rank 0 has it among its items, and tells the other ranks
    the same number of ranks as saved    each rank gets back what it captured, and sends to the
                others what DCP's plan wants of it
    another number    libckpt brings each rank the boxes that it wants, whichever ranks saved them

Then the plan's parts are copied to where DCP wants them.
"""

import io
import logging

import torch
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from libckpt import errors
from libckpt.core._arrays import Array
from libckpt.dcp import _document, _exchange
from libckpt.dcp._capturing import check_ranks, in_stored_type
from libckpt.dcp._document import ITEM, Document
from libckpt.dcp._names import COPY

logger = logging.getLogger("libckpt")


class Found:
    """A step of a job, on this rank."""

    def __init__(self, job, restored, document):
        self.job, self.step, self.document = job, restored.step, document
        self.source_name = restored.source_name

    @property
    def is_of_as_many(self):
        return self.document.world_size == self.job.session.world_size


def find(job, step):
    """The step, or the newest one, as a Found. All ranks call it. Raises NotFound: there is none."""
    session = job.session
    job.has_asked = True
    restored, text, failure = session.restore(step=step), None, None
    if session.rank == 0:
        told = restored.items.get(ITEM)
        if told is None:
            failure = errors.InvalidArgument(
                f"dcp: step {restored.step} of job {job.name} was not saved by DCP: restore it "
                "with the session that saved it, or give another job"
            )
        else:
            text = bytes(told.numpy()).decode().rstrip()
    session.ranks.agree("metadata", failure)
    text = session.ranks.decide("metadata of DCP", text, lambda said: said[0])
    return Found(job, restored, Document(text))


class Fetch:
    """One load, on this rank."""

    def __init__(self, found):
        self._found, self._document = found, found.document
        self._session = found.job.session

    def metadata(self):
        return self._document.metadata()

    def set_up_storage_reader(self, metadata, is_coordinator, **told):
        check_ranks(self._session, is_coordinator, **told)

    def prepare_global_plan(self, plans):
        """On the coordinator: tells each rank what it sends, and what it is sent."""
        if self._found.is_of_as_many:
            wanted = [self._places(plan) for plan in plans]
            transfers = _exchange.transfers(wanted)
            for rank, plan in enumerate(plans):
                plan.storage_data = [each for each in transfers if rank in (each[1], each[2])]
        return plans

    def read_data(self, plan, planner):
        places = self._places(plan)
        boxes = {}  # By rank and name of what was captured, or by name.
        if self._found.is_of_as_many:
            self._read_captured(plan.storage_data or [], places, boxes)
        else:
            self._read_boxes(plan, places, boxes)
        for item, place in zip(plan.items, places, strict=True):
            box = boxes.get((place.rank, place.name)) or boxes.get(place.name)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, _content(place.stored, box))
            else:
                _fill(item, planner, box.part(_begin(item, place), item.lengths))
        logger.warning("libckpt: resumes step %d from %s", self._found.step,
                       self._found.source_name)  # fmt: skip
        future = Future()
        future.set_result(None)
        return future

    def _places(self, plan):
        return [self._document.place(item.storage_index) for item in plan.items]

    def _read_captured(self, transfers, places, boxes):
        rank = self._session.rank
        by_key = self._document.by_rank_and_name()
        wanted = {(place.rank, place.name) for place in places if place.name}
        sent = {(source, name) for name, source, _ in transfers if source == rank}
        for key in sorted(wanted | sent):
            boxes[key] = Box.of(by_key[key])
        self._restore([box.array(key[1]) for key, box in boxes.items() if key[0] == rank])
        _exchange.run(self._session.ranks, transfers, {k: box.bytes() for k, box in boxes.items()})

    def _read_boxes(self, plan, places, boxes):
        for item, place in zip(plan.items, places, strict=True):
            if item.type == LoadItemType.BYTE_IO:
                begin, lengths = place.begin, place.sizes
            else:
                begin, lengths = _begin(item, place), item.lengths
            if place.name and place.name in boxes:
                boxes[place.name].grow(begin, lengths)
            elif place.name:
                boxes[place.name] = Box(place, begin, lengths)
        self._restore([box.array(name) for name, box in boxes.items()])

    def _restore(self, arrays):
        self._session.restore(step=self._found.step, arrays=arrays)


class Box:
    """A part of an array as it is to be read, in memory of its own."""

    def __init__(self, place, begin, lengths):
        self._size, self._type = tuple(place.size), place.type
        self._begin = list(begin)
        self._end = [b + n for b, n in zip(begin, lengths, strict=True)]
        self._memory = None

    @classmethod
    def of(cls, place):
        return cls(place, place.begin, place.sizes)

    def grow(self, begin, lengths):
        """Until it has this part, too."""
        ends = [b + n for b, n in zip(begin, lengths, strict=True)]
        self._begin = list(map(min, self._begin, begin))
        self._end = list(map(max, self._end, ends))

    @property
    def memory(self):
        if self._memory is None:
            lengths = [e - b for b, e in zip(self._begin, self._end, strict=True)]
            self._memory = torch.empty(lengths, dtype=self._type, device="cpu")
        return self._memory

    def array(self, name):
        # Of no element no place is outside.
        begin = self._begin if self.memory.numel() else [0] * len(self._begin)
        memory = in_stored_type(self.memory)
        return Array(name, memory, global_shape=self._size, offset=begin, copy=COPY)

    def bytes(self):
        return self.memory.reshape(-1).view(torch.uint8)

    def part(self, begin, lengths):
        found = self.memory
        for i, (at, count) in enumerate(zip(begin, lengths, strict=True)):
            found = found.narrow(i, at - self._begin[i], count)
        return found


def _begin(item, place):
    """Of what the item wants, in the array that has it."""
    return [b + o for b, o in zip(place.begin, item.storage_offsets, strict=True)]


def _content(stored, box):
    """An object as a planner wants it: bytes that torch.load reads."""
    if stored.form == "torch":
        return io.BytesIO(bytes(box.memory[: stored.length].numpy()))
    text = bytes(box.memory[: stored.length].numpy()).decode() if stored.name else stored.text
    return _document.bytes_of(text)


def _fill(item, planner, part):
    target = planner.resolve_tensor(item).detach()
    if part.shape != target.shape:
        raise errors.InvalidArgument(
            f'dcp: load "{item.dest_index.fqn}": {list(part.shape)} was saved and '
            f"{list(target.shape)} is wanted"
        )
    target.copy_(part)
    planner.commit_tensor(item, target)
