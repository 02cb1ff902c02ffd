"""Exchange: ranks send one another, through the default process group, what each captured and
others want. Only loads do that.
"""

import torch
from torch import distributed

from libckpt import errors
from libckpt.adapters.torch import _group

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
    for name, source, target in transfers:
        content = contents[source, name]
        for part in content.split(MESSAGE_BYTES):
            waiting.append(_Message(part, source, target, ranks.rank))
            nbytes += part.numel()
            if nbytes >= WINDOW_BYTES:
                failure = _finish(waiting) or failure
                waiting, nbytes = [], 0
    failure = _finish(waiting) or failure
    ranks.agree("chunks of DCP", failure)


class _Message:
    """A row of bytes with its digest behind it."""

    def __init__(self, part, source, target, rank):
        self._part, self._is_sent, self._source = part, rank == source, source
        device = _group.message_device()
        self._room = torch.empty(part.numel() + _group.DIGEST_BYTES, dtype=torch.uint8,
                                 device=device)  # fmt: skip
        content = self._room[: part.numel()]
        if self._is_sent:
            content.copy_(part)
            self._room[part.numel() :] = _group.digest_bytes(content)
        function, peer = distributed.irecv, source
        if self._is_sent:
            function, peer = distributed.isend, target
        self.operation = distributed.P2POp(function, self._room, peer)

    def take(self):
        """Copies it to where it belongs. Returns whether it arrived as it was sent."""
        if self._is_sent:
            return True
        content = self._room[: self._part.numel()]
        self._part.copy_(content)
        return torch.equal(self._room[self._part.numel() :], _group.digest_bytes(content))


def _finish(messages):
    """Waits for all of them. Returns an error when one did not arrive as it was sent."""
    if not messages:
        return None
    for work in distributed.batch_isend_irecv([message.operation for message in messages]):
        work.wait()
    damaged = [message for message in messages if not message.take()]
    if not damaged:
        return None
    return errors.Corruption(
        f"dcp: {len(damaged)} message(s) of rank {damaged[0]._source} did not arrive as they were "
        "sent: load again"
    )
