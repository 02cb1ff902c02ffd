"""Another trainer, that says how many collectives each process group begins while some calls run.

quiet.py SCRIPT CALLS ARGUMENTS...: CALLS is JSON, a list of MODULE:CLASS.METHOD or MODULE:FUNCTION.
Each of these calls says "call NAME {GROUP: COUNT}", without the groups that begin none. gloo
numbers the collectives of a group, whoever begins them, on whichever thread; a new group counts as
one.
"""

import functools
import importlib
import json

from doors import say


def begun():
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    return {name: group._get_sequence_number_for_group()
            for group, name in world.pg_names.items()}  # fmt: skip


def watch(name):
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    *parts, last = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    stock = getattr(owner, last)

    @functools.wraps(stock)
    def watched(*arguments, **options):
        before = begun()
        answer = stock(*arguments, **options)
        after = {group: count - before.get(group, -1) for group, count in begun().items()}
        say("call", path, json.dumps({group: count for group, count in after.items() if count}))
        return answer

    setattr(owner, last, watched)


def main(script, calls, *arguments):
    trainer = importlib.import_module(script.removesuffix(".py"))
    for name in json.loads(calls):
        watch(name)
    trainer.main(*arguments)
