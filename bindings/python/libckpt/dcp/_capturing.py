"""Capturing: a save of DCP into the memory of a job.

Each rank captures the chunks that DCP's plan gives it. Rank 0 comes last, when it has the metadata
of all: so a step is committed only when every rank wrote its part and DCP finished the save.
"""

import contextlib
import functools
import logging

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from libckpt import errors
from libckpt.core import _signals, _turn
from libckpt.core._arrays import Array
from libckpt.dcp import _document, _names
from libckpt.dcp._document import ITEM, Stored
from libckpt.dcp._names import COPY

logger = logging.getLogger("libckpt")

FAILED = MetadataIndex("")  # Sent by a rank that could not capture its part.
SLOT_SECONDS = 10.0  # For a Slot to be free; the step before may be on its way to peers.
COMMIT_SECONDS = 10.0  # For all ranks' captures to be reported.
TEXT_MAX = 64 << 10  # Longer texts are arrays of their own, as pickles are.
ROOM = 4 << 10  # An object that grows by a few bytes must not need another Slot.
SAME_BYTES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


class Capture:
    """One save, on this rank. A failure is logged, unless it is to be raised."""

    def __init__(self, job, step, may_raise):
        self._job, self._step, self._may_raise = job, step, may_raise
        self._session = job.session
        self._is_coordinator = False
        self._arrays = []  # The coordinator's, until it has the metadata.
        self._has_asked = False  # The session, for its save.
        self._ticket = None  # Its answer.

    def set_up(self, is_coordinator, **options):
        check_ranks(self._session, is_coordinator, **options)
        self._is_coordinator = is_coordinator

    def prepare_global_plan(self, plans):
        return _names.of_writers(plans)

    def write(self, plan, planner):
        """The WriteResults."""
        try:
            self._job.begin()
            return self._write(plan, planner)
        except Exception as error:  # A planner may raise anything; training goes on.
            self._fail(self._as_own(error))
            return [WriteResult(FAILED, 0, None)]

    def _write(self, plan, planner):
        several = _names.several_in(plan)
        results, arrays = [], []
        for item in plan.items:
            take = self._object if item.type == WriteItemType.BYTE_IO else self._chunk
            stored, array = take(item, planner, item.index.fqn in several)
            arrays += [] if array is None else [array]
            size = len(stored.text) if array is None else array.buffer.nbytes
            results.append(WriteResult(item.index, size, stored))
        if self._is_coordinator:
            self._arrays = arrays
        else:
            self._capture({}, arrays)
        return results

    def finish(self, metadata, results):
        """On the coordinator, when all ranks have written."""
        metadata.storage_data = {each.index: each.storage_data for part in results for each in part}
        failed = [rank for rank, part in enumerate(results)
                  if any(each.index == FAILED for each in part)]  # fmt: skip
        arrays, self._arrays = self._arrays, []
        try:
            if failed:
                raise errors.Unavailable(f"dcp: {self} is not made: rank {failed[0]} failed")
            document = _document.make(metadata, results, self._session.world_size)
            if self._capture({ITEM: document}, arrays):
                self._session.wait(self._step, "committed", COMMIT_SECONDS)
        except Exception as error:
            self._fail(self._as_own(error))

    def _as_own(self, error):
        if isinstance(error, errors.CheckpointError):
            return error
        own = errors.Unavailable(f"dcp: {self} was not captured: {type(error).__name__}: {error}")
        own.__cause__ = error
        return own

    def _fail(self, error):
        """The session has logged and counted its own failures, and learns of those before them."""
        if not self._has_asked:
            self._has_asked = True
            told = type(error)(f"save {self}: {error}")
            with contextlib.suppress(errors.CheckpointError):  # The session raises it, too.
                self._session.save(self._step, functools.partial(_turn.raised, told))
        _signals.raise_of_handler(error)
        if self._may_raise:
            raise error
        if self._ticket is not None:
            logger.error("libckpt: save %s: %s", self, error)

    def _capture(self, items, arrays):
        self._has_asked = True
        ticket = self._ticket = self._session.save(
            self._step, items, wait=SLOT_SECONDS, arrays=arrays
        )
        if not ticket and ticket.outcome != "disabled":
            raise errors.Unavailable(f"dcp: {self} was not captured: {ticket.outcome}")
        return bool(ticket)

    def _chunk(self, item, planner, is_one_of_several):
        data = item.tensor_data
        offset = tuple(data.chunk.offsets)
        name = _names.of_chunk(item.index.fqn, offset, is_one_of_several)
        tensor = planner.resolve_data(item).detach()
        if tensor.dtype.is_complex and tensor.dtype != torch.complex64:
            raise errors.Unsupported(
                f'dcp: "{item.index.fqn}" is of {tensor.dtype}, which libckpt has no type for: '
                "save torch.view_as_real() of it"
            )
        tensor = in_stored_type(tensor.contiguous())
        shape = tuple(data.chunk.sizes) if is_one_of_several else tuple(data.size)
        begin = (0,) * len(offset) if is_one_of_several else offset
        if tensor.numel() == 0:
            begin = (0,) * len(offset)  # It lies in every tensor.
        array = Array(name, tensor, global_shape=shape, offset=begin, copy=COPY,
                      may_go=True)  # fmt: skip
        return Stored(self._session.rank, name, is_one_of_several), array

    def _object(self, item, planner, _):
        """As JSON where that can hold it; else as what DCP itself makes of it, a pickle."""
        rank, name = self._session.rank, _names.of_object(item.index.fqn)
        text = _text_of(item, planner)
        if text is not None and len(text) <= TEXT_MAX:
            return Stored(rank, text=text, form="json"), None
        form = "torch" if text is None else "json"
        content = planner.resolve_data(item).getvalue() if text is None else text.encode()
        room = torch.zeros(len(content) // ROOM * ROOM + ROOM, dtype=torch.uint8)
        room[: len(content)] = torch.tensor(bytearray(content), dtype=torch.uint8)
        array = Array(name, room, global_shape=room.shape, offset=(0,), copy=COPY,
                      may_go=True)  # fmt: skip
        stored = Stored(rank, name, form=form, length=len(content), room=room.numel())
        return stored, array

    def __str__(self):
        return f"ckpt://{self._session.job}/step-{self._step}"


def check_ranks(session, is_coordinator, rank=None, use_collectives=True, **_):
    """DCP's ranks must be the session's: only together do they have all of a state dict."""
    if use_collectives and is_coordinator == (session.rank == 0) and rank in (None, session.rank):
        return
    raise errors.InvalidArgument(
        f"dcp: job {session.job}: its checkpoints are of all {session.world_size} ranks: call DCP "
        "on all of them, with a process group of all of them, without no_dist=True and "
        "use_collectives=False; a path as checkpoint_id takes any group"
    )


def in_stored_type(tensor):
    """The same bytes as a type that the format has a name for."""
    from libckpt.adapters.torch._tensors import TYPE_NAMES, text_of

    if text_of(tensor.dtype) in TYPE_NAMES:
        return tensor
    return tensor.view(SAME_BYTES[tensor.dtype.itemsize])


def _text_of(item, planner):
    """The object as JSON; None: it cannot be, or the planner has a way of its own."""
    is_stock = isinstance(planner, DefaultSavePlanner) and (
        type(planner).resolve_data is DefaultSavePlanner.resolve_data
        and type(planner).transform_object is DefaultSavePlanner.transform_object
    )
    if not is_stock:
        return None
    try:
        return _document.text_of(planner.lookup_object(item.index))
    except errors.CheckpointError:
        return None
