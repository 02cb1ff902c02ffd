"""Ranks: the ranks of a job say things to one another, and hand tensors round.

Words go through the Store of a framework's group, which asks for no collective and no GPU; tensors
through the group itself. Every rank makes the same calls in the same order.
"""

import json
import logging
import math
import os
import time

from libckpt import errors
from libckpt.core import _frameworks

SAY_SECONDS = 60.0  # Ranks open, save and restore together; a slow import or a first step is less.
SILENT_SECONDS = 5.0  # A longer wait is logged.
PAUSE_MIN, PAUSE_MAX = 0.001, 0.25
LATE_PART = 16  # A pause is this part of the wait so far, so a message is noticed hardly later.
RANKS_AT_ONCE = 256  # So many may ask one Store at the shortest pause.

logger = logging.getLogger("libckpt")

_sessions = {}  # By job: how many were opened here, so that each has words of its own.


def of(options, can_talk=True):
    """The ranks of these options, as far as they can, and may, be reached from here."""
    job, rank, world_size = options["job"], options.get("rank", 0), options.get("world_size", 1)
    group = None
    if can_talk and world_size > 1:
        group = _frameworks.first_answer(lambda adapter: adapter.group(world_size))
    if group is None:
        ranks = Ranks(job, rank, world_size)
        ranks.can_talk = can_talk and world_size == 1
        return ranks
    number = _sessions[job] = _sessions.get(job, 0) + 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Ranks(job, rank, world_size, group.store, f"libckpt/{job}/{attempt}/{number}", group)


def counted(ranks):
    """For people: "1 rank", "2 ranks"."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


class Ranks:
    def __init__(self, job, rank=0, world_size=1, store=None, prefix="", group=None):
        self.job, self.rank, self.world_size = job, rank, world_size
        self._store, self._prefix, self._group = store, prefix, group
        self.can_talk = world_size == 1 or store is not None
        self.origin = None  # In words, who says rank and world size; None: the program.
        self._turns = {}  # By word: how often it was sent.

    def explained(self, error):
        """The same error, with where the rank comes from if others are not there. Variables that a
        shell still has are easily forgotten."""
        if self.origin is None or self.can_talk or "is not attached" not in str(error):
            return error
        return type(error)(f"{error}; this process is rank {self.rank} of {self.world_size} by "
                           f"{self.origin}: to train alone, unset them")  # fmt: skip

    @property
    def are_several(self):
        """Whether there are other ranks that can be reached."""
        return self.world_size > 1 and self.can_talk

    @property
    def host(self):
        """Where rank 0 runs, if the framework's group knows."""
        return getattr(self._group, "host", None)

    def decide(self, what, value, rule):
        """`rule` of all ranks' values, by rank, as rank 0 finds it.

        Values and results are what JSON holds. Raises Unavailable when a rank does not say its
        value in time.
        """
        if not self.are_several:
            return _as_said(rule([_as_said(value)]))
        value = json.dumps(value)
        turn = self._turns[what] = self._turns.get(what, 0) + 1
        key = f"{self._prefix}/{what}/{turn}"
        if self.rank != 0:
            self._store.set(f"{key}/{self.rank}", value)
            return json.loads(self._heard(what, f"{key}/all", 0))
        values = [json.loads(value)]
        for other in range(1, self.world_size):
            values.append(json.loads(self._heard(what, f"{key}/{other}", other)))
            self._store.delete_key(f"{key}/{other}")
        result = json.dumps(rule(values))
        self._store.set(f"{key}/all", result)
        return json.loads(result)

    def store_for(self, what):
        """The Store and a prefix of keys, for exchanges in which no rank waits."""
        return self._store, f"{self._prefix}/{what}"

    def exchange(self, what, value):
        """The values of all ranks, by rank."""
        return self.decide(what, value, lambda values: values)

    def meet(self, what):
        """Returns when all ranks have called it, on rank 0 last: that may have the Store, and may
        end next."""
        self.exchange(what, None)
        if not self.are_several:
            return
        key = f"{self._prefix}/{what}/{self._turns[what]}/heard"
        if self.rank != 0:
            self._store.set(f"{key}/{self.rank}", "1")
            return
        for other in range(1, self.world_size):
            self._heard(what, f"{key}/{other}", other)
            self._store.delete_key(f"{key}/{other}")

    def _heard(self, what, key, other):
        began = time.monotonic()
        try:
            self._wait(what, key, other)
            return self._store.get(key)
        except RuntimeError as error:
            waited = time.monotonic() - began
            reason = "all ranks must open, save and restore alike"
            if waited < SAY_SECONDS:
                reason = "the Store by which the ranks talk is lost: rank 0 may have ended"
            raise errors.Unavailable(
                f"job {self.job}: rank {self.rank} waited {waited:.0f} s for rank {other} to send "
                f"its {what}: {reason}"
            ) from error

    def _wait(self, what, key, other):
        """Asks now and then: while a Store waits, it hears no Ctrl-C. The log names the
        rank that the others wait for: it may have failed."""
        began, is_silent = time.monotonic(), True
        shortest = PAUSE_MIN * math.ceil(self.world_size / RANKS_AT_ONCE)
        while not self._store.check([key]):
            waited = time.monotonic() - began
            if waited >= SAY_SECONDS:
                raise RuntimeError("the deadline passed")
            if is_silent and waited >= SILENT_SECONDS:
                is_silent = False
                logger.warning(
                    "libckpt: job %s: rank %d waits for rank %d to send its %s, up to %.0f s more: "
                    "has that rank failed?", self.job, self.rank, other, what, SAY_SECONDS - waited,
                )  # fmt: skip
            time.sleep(min(max(shortest, waited / LATE_PART), PAUSE_MAX))

    def agree(self, what, error):
        """Returns when no rank has an error; else all raise."""
        self.raise_for(self.failures(what, error), error)

    def failures(self, what, error):
        """The errors of all ranks, each as [rank, name, text]."""
        failure = None if error is None else [type(error).__name__, str(error)]
        found = enumerate(self.exchange(what, failure))
        return [[rank, *said] for rank, said in found if said is not None]

    def raise_for(self, failures, error):
        """Raises the own error, or else the first of them, if there is one."""
        if error is not None:
            raise error
        if failures:
            rank, name, text = failures[0]
            kind = getattr(errors, name, errors.CheckpointError)
            raise kind(f"rank {rank}: {text}")

    def hand_round(self, by_source):
        """Fills parts, rows of bytes of the same sizes everywhere, with those of the rank that is
        their key.

        Raises Corruption, after the last of them, when a part did not arrive as it was sent.
        """
        by_gpus = getattr(self._group, "by_gpus", None)
        rest = by_gpus(self, by_source) if by_gpus else by_source
        damage = None
        for source in sorted(rest):
            try:
                self._group.broadcast(source, self.rank, rest[source])
            except errors.Corruption as error:
                damage = error
        if damage is not None:
            raise damage


def _as_said(value):
    return json.loads(json.dumps(value))
