"""Exchange: arrays of a step that other processes need go round through the devices.

    every process   says which cells it needs and does not have
    every process   says which of those it has
    each in turn    sends them to all, in messages of one size

Each process has read the part of the wanted arrays that it had captured: its share.
"""

import zlib

import numpy
from jax.experimental import multihost_utils

from libckpt import errors

MESSAGE = 32 << 20  # Bytes; each device of the job has room for one.
SUM = 4


def exchange(ranks, own, needed):
    """Adds to `own`, by name the bytes of cells, those of `needed`, by name the place for them, as
    rows of bytes. All processes call it."""
    missing = sorted(needed.keys() - own.keys())
    wanted = set().union(*ranks.exchange("cells that are missing", missing))
    if not wanted:
        return
    offered = ranks.exchange("cells that are there", sorted(wanted & own.keys()))
    sizes = ranks.exchange("sizes of cells", {name: own[name].size for name in wanted & own.keys()})
    lost = wanted - set().union(*offered)
    if lost:
        raise errors.Corruption(
            f'restore: no process has "{min(lost)}", and {len(lost)} cell(s) in all, though each '
            "brought what it had captured: restore an older step by its number"
        )
    is_sent, failure = set(), None
    for source, names in enumerate(offered):
        names = [name for name in names if name not in is_sent]
        is_sent.update(names)
        places = [
            (own if source == ranks.rank else needed).get(name) for name in names
        ]
        try:
            _broadcast(source, ranks.rank, places, [sizes[source][name] for name in names])
        except errors.Corruption as error:  # The others are in the next message already.
            failure = error
    ranks.agree("cells", failure)
    own.update({name: needed[name] for name in missing})


def _broadcast(source, rank, places, sizes):
    """Fills the rows of bytes that have a place here; all rows come, one after the other."""
    total, damaged = sum(sizes), 0
    size = min(MESSAGE, 1 << max(total - 1, 1).bit_length())  # So that few shapes are compiled.
    row = numpy.zeros(size + SUM, numpy.uint8)
    for begin in range(0, total, size):
        pieces = list(_pieces(places, sizes, begin, min(begin + size, total)))
        if source == rank:
            for place, at, to in pieces:
                row[to] = place[at]
            row[size:] = _sum_of(row[:size])
        sent = multihost_utils.broadcast_one_to_all(row, is_source=source == rank)
        received = numpy.asarray(sent, numpy.uint8)
        if source == rank:
            continue
        damaged += not numpy.array_equal(received[size:], _sum_of(received[:size]))
        for place, at, to in pieces:
            if place is not None:
                place[at] = received[to]
    if damaged:
        raise errors.Corruption(
            f"restore: {damaged} message(s) of process {source} did not arrive as they were sent"
        )


def _pieces(places, sizes, begin, end):
    """(place, slice of it, slice of the message) of what lies between the two, of all in a row."""
    at = 0
    for place, size in zip(places, sizes, strict=True):
        low, high = max(begin, at), min(end, at + size)
        if low < high:
            yield place, slice(low - at, high - at), slice(low - begin, high - begin)
        at += size


def _sum_of(content):
    return numpy.frombuffer(zlib.crc32(content).to_bytes(SUM, "little"), numpy.uint8)


