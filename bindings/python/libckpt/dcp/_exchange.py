"""Exchange: ranks send one another, through the default process group, what each captured and
others want. Only loads do that.
"""

import itertools

import torch
from torch import distributed

from libckpt import errors
from libckpt.adapters.torch import _group
from libckpt.adapters.torch._buckets import buckets

MESSAGE_BYTES = 64 << 20
WINDOW_BYTES = 256 << 20  # On their way at a time, on each rank.


def transfers(wanted):
    """(name, source, target) of all that a rank wants and another one captured, in one order.
    `wanted`: by rank, the Places that it reads."""
    found = {
        (place.rank, target, place.name)
        for target, places in enumerate(wanted)
        for place in places
        if place.name and place.rank != target and 0 not in place.sizes
    }
    return [(name, source, target) for source, target, name in sorted(found)]


def run(ranks, transfers, contents):
    """Fills, of `contents` by rank and name, those that are sent to this rank. All ranks call it,
    each with the transfers that it has a part in."""
    failure = None
    waiting, nbytes = [], 0
    for message in messages(transfers, contents, ranks.rank):
        waiting.append(message)
        nbytes += message.nbytes
        if nbytes >= WINDOW_BYTES:
            failure = _finish(waiting) or failure
            waiting, nbytes = [], 0
    failure = _finish(waiting) or failure
    ranks.agree("chunks of DCP", failure)


def messages(transfers, contents, rank):
    """The bytes from one rank to another are cut without regard to others: both cut them alike.
    Small contents go together: a model has a number of steps for each parameter."""
    for (source, target), together in itertools.groupby(transfers, lambda each: each[1:]):
        rows = [contents[source, name] for name, *_ in together]
        for parts in buckets(rows, MESSAGE_BYTES):
            yield _Message(parts, source, target, rank)


class _Message:
    """Rows of bytes, one behind the other, with a digest behind them."""

    def __init__(self, parts, source, target, rank):
        self._parts, self._is_sent, self.source = parts, rank == source, source
        self.nbytes = sum(part.numel() for part in parts)
        self._room = torch.empty(self.nbytes + _group.DIGEST_BYTES, dtype=torch.uint8,
                                 device=_group.message_device())  # fmt: skip
        function, peer = distributed.irecv, source
        if self._is_sent:
            for part, place in self._places():
                place.copy_(part)
            self._room[self.nbytes :] = _group.digest_bytes(self._room[: self.nbytes])
            function, peer = distributed.isend, target
        self.operation = distributed.P2POp(function, self._room, peer)

    def take(self):
        """Copies it to where it belongs. Returns whether it arrived as it was sent."""
        if self._is_sent:
            return True
        for part, place in self._places():
            part.copy_(place)
        digest = _group.digest_bytes(self._room[: self.nbytes])
        return torch.equal(self._room[self.nbytes :], digest)

    def _places(self):
        """Each part, and its place in the message."""
        lengths = [part.numel() for part in self._parts]
        return zip(self._parts, self._room[: self.nbytes].split(lengths), strict=True)


def _finish(waiting):
    """Waits for all of them. Returns an error when one did not arrive as it was sent."""
    if not waiting:
        return None
    for work in distributed.batch_isend_irecv([message.operation for message in waiting]):
        work.wait()
    damaged = [message for message in waiting if not message.take()]
    if not damaged:
        return None
    return errors.Corruption(
        f"dcp: {len(damaged)} message(s) of rank {damaged[0].source} did not arrive as they were "
        "sent: load again"
    )
