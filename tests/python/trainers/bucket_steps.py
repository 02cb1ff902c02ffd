"""Saves the steps that are named behind the directory, and prints those that became durable."""

import sys

import numpy

import libckpt
from libckpt import errors


def main():
    directory, *steps = sys.argv[1:]
    with libckpt.init("job", directory, save_storage_interval=1, raise_on_error=True) as session:
        session.start_fresh()
        for step in map(int, steps):
            session.save(step, {"weights": numpy.full(3_000_000, step, numpy.float32)})
            try:
                session.wait(step, "durable", 20)
                print(step, flush=True)
            except errors.CheckpointError as error:  # The other one has published it.
                print(error, file=sys.stderr)


main()
