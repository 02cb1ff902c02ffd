"""Ranks that divide a table by rows, and another as flat ranges; to be killed, and started again in
any number.

worlds.py RANKS END [PLACES RUNTIME]: END is "asks" (stays there before it restores), "restored",
"committed" or "stored". PLACES has a letter for each rank, the node it is on; the daemon of that
node has its directory below RUNTIME. Without, all are on one node.
"""

import os
import signal
import sys

import numpy

import libckpt

SHAPE = (61, 50)  # No number of ranks divides the rows evenly.


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def at(step):
    """The table when that many steps were made: each element is another number."""
    return numpy.arange(SHAPE[0] * SHAPE[1], dtype=numpy.float64).reshape(SHAPE) + 10_000 * step


def divided(length, rank, world):
    return length * rank // world, length * (rank + 1) // world


def place_of(rank, places="", runtime=""):
    return {"node": places[rank], "runtime_dir": f"{runtime}/{places[rank]}"} if places else {}


def train(rank, world, end, place):
    first, last = divided(SHAPE[0], rank, world)
    begin, stop = divided(SHAPE[0] * SHAPE[1], rank, world)
    rows, flat = numpy.zeros((last - first, SHAPE[1])), numpy.zeros(stop - begin)
    arrays = [libckpt.Array("rows", rows, global_shape=SHAPE, offset=(first, 0)),
              libckpt.Array("flat", flat, global_shape=SHAPE, flat=begin)]  # fmt: skip
    session = libckpt.init("worlds", rank=rank, world_size=world, raise_on_error=True, **place)
    say("asks", rank)
    if end == "asks" and rank == 0:
        signal.pause()  # The others wait for it.
    step = 0
    try:
        restored = session.restore(arrays=arrays)
        step = restored.step
        table = at(step)
        is_same = (rows == table[first:last]).all() and (flat == table.ravel()[begin:stop]).all()
        say("restored", step, "saved by", restored.world_size, "same" if is_same else "other")
        say("rank", rank, "from", restored.source, restored.bytes_from_storage)
    except libckpt.NotFound:
        say("nothing")
    if end == "restored":
        signal.pause()
    step += 1
    rows[:], flat[:] = at(step)[first:last], at(step).ravel()[begin:stop]
    session.save(step, {"progress": {"step": step}}, wait=60, arrays=arrays)
    session.wait(step, "durable" if end == "stored" else "committed")
    say(end, step)
    signal.pause()


def main(ranks, end, *places):
    for rank in range(int(ranks)):
        process = os.fork()
        if process == 0:
            train(rank, int(ranks), end, place_of(rank, *places))
            return
        say("process", process)
    for _ in range(int(ranks)):
        os.wait()
    sys.exit(0)
