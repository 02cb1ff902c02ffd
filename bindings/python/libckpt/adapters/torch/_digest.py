"""Digest: 64 bits that tell whether the bytes of tensors are the same, taken where they lie.

A sum of products with fixed random numbers, carried on from block to block: it finds accidents, and
is no protection against a search for two tensors of one digest.
"""

import functools

import numpy
import torch

BLOCK = 1 << 20  # Words of 32 bits that are summed at a time.
FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # Odd: no information is lost from block to block.


def flat_bytes(tensor):
    """A contiguous tensor of torch or numpy as one row of bytes; the memory is shared."""
    if not isinstance(tensor, torch.Tensor):
        tensor = torch.from_numpy(tensor.reshape(-1).view(numpy.uint8))
    return tensor.detach().reshape(-1).view(torch.uint8)


@functools.lru_cache(maxsize=8)
def _multipliers(device):
    own = torch.Generator("cpu").manual_seed(0x6C69_6263)  # Not the one that training draws from.
    drawn = torch.randint(-(1 << 62), 1 << 62, (BLOCK,), generator=own, device="cpu")
    return drawn.mul_(2).add_(1).to(device)


def of_bytes(flat):
    """The digest of a row of bytes: a number in a tensor, on the device of the bytes."""
    multipliers = _multipliers(flat.device)
    total = torch.tensor(flat.numel(), device=flat.device)
    whole = flat.numel() // 4 * 4
    words = _aligned(flat[:whole]).view(torch.int32)
    for begin in range(0, words.numel(), BLOCK):
        block = words[begin : begin + BLOCK].to(torch.int64)
        total = total * FACTOR + (block * multipliers[: block.numel()]).sum()
    rest = flat[whole:].to(torch.int64)
    return total * FACTOR + (rest * multipliers[: rest.numel()]).sum()


def _aligned(flat):
    return flat if flat.storage_offset() % 4 == 0 and flat.data_ptr() % 4 == 0 else flat.clone()


class Digests:
    """The digest of each tensor as a number; one that is not contiguous is copied first.

    Tensors on a GPU are summed there, behind the queued work; no thread waits for it.
    """

    def __init__(self, tensors):
        by_name = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor):
                tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
            else:
                tensor = numpy.ascontiguousarray(tensor)
            by_name[name] = of_bytes(flat_bytes(tensor))
        self._parts = []  # For each device: names, numbers on the host, an event or None.
        for device in {part.device for part in by_name.values()}:
            names = [name for name, part in by_name.items() if part.device == device]
            numbers, event = torch.stack([by_name[name] for name in names]), None
            if device.type == "cuda":
                host = torch.empty(len(names), dtype=torch.int64, pin_memory=True)
                host.copy_(numbers, non_blocking=True)
                numbers, event = host, torch.cuda.current_stream(device).record_event()
            self._parts.append((names, numbers, event))

    def are_ready(self):
        return all(event is None or event.query() for _, _, event in self._parts)

    def result(self):
        """Once they are ready."""
        return {
            name: number
            for names, numbers, _ in self._parts
            for name, number in zip(names, numbers.tolist(), strict=True)
        }
