"""Group: torch's own Store and default process group, through which the ranks of a job talk."""

import torch
from torch import distributed

from libckpt import errors
from libckpt.adapters.torch import _digest, _gpu_ranks
from libckpt.adapters.torch._buckets import buckets

BUCKET = 32 << 20  # Bytes that are sent at a time.
DIGEST_BYTES = 8


def group_of(world_size):
    """None: torch.distributed is not in use, or has another number of ranks."""
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return Group() if distributed.get_world_size() == world_size else None


def standing():
    """(rank, number of ranks) in the default process group; None: there is none."""
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


class Group:
    def __init__(self):
        from torch.distributed.distributed_c10d import _get_default_store

        self.store = _get_default_store()

    # Sends those shares of a restore that NCCL can take; the rest is for `broadcast`.
    by_gpus = staticmethod(_gpu_ranks.hand_round)

    @staticmethod
    def broadcast(source, rank, parts):
        """Fills the parts, rows of bytes of the same sizes everywhere, with those of rank `source`.

        Raises Corruption, after the last of them, when a part did not arrive as it was sent.
        """
        damaged = 0
        size = min(sum(part.numel() for part in parts), BUCKET)
        room = torch.empty(size + DIGEST_BYTES, dtype=torch.uint8, device=message_device())
        for pieces in buckets(parts, BUCKET):
            used = sum(piece.numel() for piece in pieces)
            message, content = room[: used + DIGEST_BYTES], room[:used]
            if source == rank:
                torch.cat([piece.to(room.device) for piece in pieces], out=content)
                message[used:] = digest_bytes(content)
            distributed.broadcast(message, source)
            if source == rank:
                continue
            damaged += not torch.equal(message[used:], digest_bytes(content))
            lengths = [piece.numel() for piece in pieces]
            for piece, received in zip(pieces, content.split(lengths), strict=True):
                piece.copy_(received)
        if damaged:
            raise errors.Corruption(
                f"restore: {damaged} message(s) of rank {source} did not arrive as they were sent"
            )


def digest_bytes(content):
    return _digest.of_bytes(content).reshape(1).view(torch.uint8)


def message_device():
    """The device from which the default group sends: the host if it can."""
    types = {device.type for device in distributed.group.WORLD._device_types}
    if "cpu" in types or not types:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
