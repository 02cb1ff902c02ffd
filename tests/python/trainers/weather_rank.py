"""A rank of a job in rough weather: test_weather.py draws its options, and kills it.

weather_rank.py SPEC: JSON with the rank, its options, and the files of events and of the barrier.
Each state follows from the one before and from the number of the life, so that it says of itself
which steps led to it. The events are JSON, a line each.
"""

import hashlib
import json
import mmap
import os
import signal
import struct
import time

import numpy

import libckpt

ROWS = 97  # No number of ranks divides them evenly.
END_AT = 2048  # In the barrier's file: the step after which all ranks end.
BARRIER_BYTES = 4096
HISTORY_STEPS_MAX = 2000


def successor(lineage, life):
    return int.from_bytes(hashlib.sha256(f"{lineage} {life}".encode()).digest()[:7], "little")


def table_of(lineage, columns):
    return numpy.random.Generator(numpy.random.PCG64(lineage)).random((ROWS, columns))


def history_of(lineage, step, bytes_each):
    """State that grows, as a list of losses does, so that Slots become too small for it."""
    count = min(step, HISTORY_STEPS_MAX) * bytes_each
    return hashlib.shake_128(str(lineage).encode()).digest(count)


class Barrier:
    """Steps are made together, as ranks that add up their gradients make them."""

    def __init__(self, path, rank, world):
        self._memory = mmap.mmap(os.open(path, os.O_RDWR), BARRIER_BYTES)
        self._rank, self._world = rank, world

    def _get(self, place):
        return struct.unpack_from("Q", self._memory, place)[0]

    def pass_step(self, step):
        struct.pack_into("Q", self._memory, 8 * self._rank, step)
        while any(self._get(8 * rank) < step for rank in range(self._world)):
            time.sleep(0.0005)

    def end_soon(self, step):
        """The others may be one step ahead."""
        if not self._get(END_AT):
            struct.pack_into("Q", self._memory, END_AT, step + 3)

    def is_end(self, step):
        return 0 < self._get(END_AT) <= step


class Rank:
    def __init__(self, spec):
        self.spec = spec
        self.rank, self.world, self.life = spec["rank"], spec["world"], spec["life"]
        self._events = open(spec["events"], "a", buffering=1)
        self._barrier = Barrier(spec["barrier"], self.rank, self.world)
        self._first, self._end = (ROWS * (self.rank + more) // self.world for more in (0, 1))
        self._rows = numpy.zeros((self._end - self._first, spec["columns"]))
        frozen = numpy.random.Generator(numpy.random.PCG64(7)).random(spec["frozen"])
        self._frozen, self._frozen_right = numpy.zeros_like(frozen), frozen
        self._arrays = [
            libckpt.Array("rows", self._rows, global_shape=(ROWS, spec["columns"]),
                          offset=(self._first, 0)),
            libckpt.Array("frozen", self._frozen, global_shape=frozen.shape, offset=(0,),
                          copy=self.rank),
        ]  # fmt: skip
        self._is_told_to_end = False
        signal.signal(signal.SIGTERM, self._note_end)

    def _note_end(self, number, frame):
        self._is_told_to_end = True

    def say(self, event, **more):
        self._events.write(json.dumps({"is": event, "rank": self.rank, **more}) + "\n")

    def run(self):
        try:
            options = self.spec["options"] | {"rank": self.rank, "world_size": self.world}
            with libckpt.init("weather", **options) as session:
                self._train(session, *self._begin(session))
            self.say("closed")
        except libckpt.CheckpointError as error:
            self.say("error", text=f"{type(error).__name__}: {error}")
            raise

    def _rows_of(self, lineage):
        return table_of(lineage, self.spec["columns"])[self._first : self._end]

    def _restored(self, session):
        try:
            return session.restore(arrays=self._arrays)
        except (libckpt.Unsupported, libckpt.Corruption):  # Another number of ranks saved it.
            return session.restore(arrays=self._arrays, path=self.spec["directory"])

    def _begin(self, session):
        """The step and its lineage."""
        try:
            restored = self._restored(session)
        except libckpt.NotFound:
            self._frozen[:] = self._frozen_right
            self.say("began", step=0, lineage=1, is_right=True)
            return 0, 1
        state = restored.items.get("state", {})
        lineage = state.get("lineage", 0)
        history = history_of(lineage, restored.step, self.spec["history"])
        is_right = (
            state.get("step") == restored.step
            and state.get("history") == history
            and numpy.array_equal(self._rows, self._rows_of(lineage))
            and numpy.array_equal(self._frozen, self._frozen_right)
        )
        self.say("began", step=restored.step, lineage=lineage, is_right=is_right)
        return restored.step, lineage

    def _train(self, session, step, lineage):
        last = step + self.spec["steps"]
        while step < last and not self._barrier.is_end(step):
            step, lineage = step + 1, successor(lineage, self.life)
            self._barrier.pass_step(step)
            session.finish_capture()
            self._rows[:] = self._rows_of(lineage)
            self.say("step", step=step, lineage=lineage)
            history = history_of(lineage, step, self.spec["history"])
            state = {"step": step, "lineage": lineage, "history": history}
            session.save_checkpoint_if_needed(step, {"state": state}, arrays=self._arrays)
            time.sleep(self.spec["pause"])
            if step % 5 == 0:
                counts = session.counts()
                self.say("levels", committed=counts["committed"], durable=counts["durable"])
            if self._is_told_to_end:
                self._barrier.end_soon(step)


def main(spec):
    Rank(json.loads(spec)).run()
