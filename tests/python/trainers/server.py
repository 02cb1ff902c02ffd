"""Forks trainers from one process, so that many of them cost one import of their frameworks.

For each line of standard input, JSON with "script" (a file beside this one), "arguments",
"environment" and "log", it says the process id of a trainer, and when that has ended its status.
A trainer ends as any program does: by return, exit or exception.
"""

import contextlib
import importlib
import json
import os
import sys

import faults


def become(request):
    """In the fork: the trainer, with output and environment of its own."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(request["environment"])
    sys.stdin = open(os.devnull)
    faults.obey()
    with contextlib.suppress(ImportError):  # There are trainers that need none.
        import torch

        torch.set_num_threads(1)


def serve():
    """Returns in each fork, with what is to be done there."""
    for line in sys.stdin:
        request = json.loads(line)
        trainer = importlib.import_module(request["script"].removesuffix(".py"))
        child = os.fork()
        if child == 0:
            become(request)
            return trainer, request["arguments"]
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None, ()


if __name__ == "__main__":
    trainer, arguments = serve()
    if trainer is not None:
        trainer.main(*arguments)
