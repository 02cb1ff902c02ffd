"""Ranks: the ranks of a job say things to one another, and hand tensors round.

Words go through torch's own Store, which asks for no collective and no GPU; tensors through the
default process group. Every rank makes the same calls in the same order.
"""

import datetime
import json
import os
import sys

from libckpt import _digest, errors

SAY_SECONDS = 60.0
BUCKET = 32 << 20  # Bytes that are sent at a time.
DIGEST_BYTES = 8

_sessions = {}  # By job: how many were opened here, so that each has words of its own.


def of(options, can_talk=True):
    """The ranks of these options, as far as they can, and may, be reached from here."""
    job, rank, world_size = options["job"], options.get("rank", 0), options.get("world_size", 1)
    if not can_talk:
        silent = Ranks(job, rank, world_size)
        silent.can_talk = False
        return silent
    if world_size == 1:
        return Ranks(job)
    distributed = _distributed()
    if distributed is None or distributed.get_world_size() != world_size:
        return Ranks(job, rank, world_size)
    from torch.distributed.distributed_c10d import _get_default_store

    number = _sessions[job] = _sessions.get(job, 0) + 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Ranks(job, rank, world_size, _get_default_store(), f"libckpt/{job}/{attempt}/{number}")


def _distributed():
    """torch.distributed; none when it is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    return torch.distributed if torch.distributed.is_initialized() else None


class Ranks:
    def __init__(self, job, rank=0, world_size=1, store=None, prefix=""):
        self.job, self.rank, self.world_size = job, rank, world_size
        self._store, self._prefix = store, prefix
        self.can_talk = world_size == 1 or store is not None
        self._turns = {}  # By what was said.

    @property
    def are_several(self):
        """Whether there are others, who can be reached."""
        return self.world_size > 1 and self.can_talk

    def decide(self, what, value, rule):
        """`rule` of all ranks' values, by rank, as rank 0 finds it.

        Values and results are what JSON holds. Raises Unavailable when a rank does not say its
        value in time.
        """
        if not self.are_several:
            return _as_said(rule([_as_said(value)]))
        value = json.dumps(value)
        turn = self._turns[what] = self._turns.get(what, 0) + 1
        key = f"{self._prefix}/{what}/{turn}"
        if self.rank != 0:
            self._store.set(f"{key}/{self.rank}", value)
            return json.loads(self._heard(what, f"{key}/all", 0))
        values = [json.loads(value)]
        for other in range(1, self.world_size):
            values.append(json.loads(self._heard(what, f"{key}/{other}", other)))
            self._store.delete_key(f"{key}/{other}")
        result = json.dumps(rule(values))
        self._store.set(f"{key}/all", result)
        return json.loads(result)

    def store_for(self, what):
        """The Store, and what keys begin with: for those who wait for nobody."""
        return self._store, f"{self._prefix}/{what}"

    def exchange(self, what, value):
        """What each rank says, by rank."""
        return self.decide(what, value, lambda values: values)

    def _heard(self, what, key, other):
        try:
            self._store.wait([key], datetime.timedelta(seconds=SAY_SECONDS))
            return self._store.get(key)
        except RuntimeError as error:
            raise errors.Unavailable(
                f"job {self.job}: rank {self.rank} waited {SAY_SECONDS:.0f} s for rank {other} to "
                f"tell its {what}: all ranks must open, save and restore alike"
            ) from error

    def agree(self, what, error):
        """Returns when no rank has an error to tell; else all raise."""
        self.raise_for(self.failures(what, error), error)

    def failures(self, what, error):
        """The errors of all ranks, each as [rank, name, text]."""
        told = None if error is None else [type(error).__name__, str(error)]
        return [
            [rank, *said] for rank, said in enumerate(self.exchange(what, told)) if said is not None
        ]

    def raise_for(self, failures, error):
        """Raises the own error, or else the first of them, if there is one."""
        if error is not None:
            raise error
        if failures:
            rank, name, text = failures[0]
            kind = getattr(errors, name, errors.CheckpointError)
            raise kind(f"rank {rank}: {text}")

    def broadcast(self, source, parts):
        """Fills the parts, rows of bytes of the same sizes everywhere, with those of rank `source`.

        Raises Corruption, after the last of them, when a part did not arrive as it was sent.
        """
        import torch

        damaged = 0
        size = min(sum(part.numel() for part in parts), BUCKET)
        room = torch.empty(size + DIGEST_BYTES, dtype=torch.uint8, device=_device())
        for pieces in _buckets(parts, BUCKET):
            used = sum(piece.numel() for piece in pieces)
            message, content = room[: used + DIGEST_BYTES], room[:used]
            if source == self.rank:
                torch.cat([piece.to(room.device) for piece in pieces], out=content)
                message[used:] = _digest_bytes(content)
            torch.distributed.broadcast(message, source)
            if source == self.rank:
                continue
            damaged += not torch.equal(message[used:], _digest_bytes(content))
            lengths = [piece.numel() for piece in pieces]
            for piece, received in zip(pieces, content.split(lengths), strict=True):
                piece.copy_(received)
        if damaged:
            raise errors.Corruption(
                f"restore: {damaged} message(s) of rank {source} did not arrive as they were sent"
            )


def _as_said(value):
    return json.loads(json.dumps(value))


def _digest_bytes(content):
    import torch

    return _digest.of_bytes(content).reshape(1).view(torch.uint8)


def _device():
    """Where the default group takes tensors from: the host if it can."""
    import torch

    types = {device.type for device in torch.distributed.group.WORLD._device_types}
    if "cpu" in types or not types:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _buckets(parts, limit):
    """The rows of bytes one after the other, cut into lists of `limit` bytes."""
    pieces, room = [], limit
    for part in parts:
        begin = 0
        while begin < part.numel():
            piece = part[begin : begin + room]
            pieces.append(piece)
            begin += piece.numel()
            room -= piece.numel()
            if room == 0:
                yield pieces
                pieces, room = [], limit
    if pieces:
        yield pieces
