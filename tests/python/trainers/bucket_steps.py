"""Saves the steps that are named behind the directory, and prints those that became durable."""

import sys

import numpy

import libckpt
from libckpt import errors


def main():
    directory, *steps = sys.argv[1:]
    session = libckpt.init("job", directory, save_storage_interval=1, raise_on_error=True)
    session.start_fresh()
    for step in map(int, steps):
        session.save(step, {"weights": numpy.full(3_000_000, step, numpy.float32)})
        try:
            session.wait(step, "durable", 10)
            print(step, flush=True)
        except errors.CheckpointError as error:  # Another daemon owns the directory.
            print(error, file=sys.stderr)
    try:
        session.close(600)  # The loser's flush is refused: it does not wait for that deadline.
    except errors.CheckpointError as error:
        print(error, file=sys.stderr)


main()
