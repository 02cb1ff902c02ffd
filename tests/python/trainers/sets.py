"""Ranks that save file sets.

sets.py DIRECTORY RANKS CALLS: CALLS is JSON, a list of what all ranks do: ["save", NAME, NUMBER]
(each rank has an object of its own, and a file that it writes itself), ["miss", NAME, RANK] (that
rank does not commit), ["give up", NAME, RANK] (and says so), ["settle"], ["remove", NAME] or
["pause"] until it is killed. Each rank says "began" once its sets are open, and what it did.
"""

import json
import os
import signal

import doors
import torch
import torch.distributed as dist

from libckpt.adapters.torch._file_sets import FileSets


def collected(sets, name, number):
    fileset = sets.begin(name)
    part = torch.full((2_000_000,), float(number))  # More than the Slots of a beginning hold.
    fileset.objects[f"rank_{sets.rank}.pt"] = {"a": part, "b": number}
    if sets.rank == 0:
        fileset.objects["parts/common.pt"] = torch.arange(10)
    fileset.path(f"own_{sets.rank}.txt").write_text(str(number))
    return fileset


def do(sets, what, *arguments):
    if what == "save":
        name, number = arguments
        collected(sets, name, number).commit({"latest": name}, then=lambda: doors.say("is", name))
    elif what in ("miss", "give up"):
        name, rank = arguments
        fileset = collected(sets, name, 0)
        if sets.rank != rank:
            fileset.commit({"latest": name})
        elif what == "give up":
            fileset.give_up()
    elif what == "settle":
        sets.settle()
    elif what == "remove" and sets.rank == 0:
        sets.remove(*arguments)
    doors.say("did", what, *arguments)
    if what == "pause":
        signal.pause()


def main(directory, ranks, calls):
    ranks = int(ranks)
    if ranks > 1:
        doors.become_rank(ranks)
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0)) if ranks > 1 else 0
    sets = FileSets("sets", directory, rank=rank, world_size=ranks)
    doors.say("began")
    for call in json.loads(calls):
        do(sets, *call)
    sets.close()
    if ranks > 1:
        doors.leave_group()
