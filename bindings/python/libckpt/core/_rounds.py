"""Rounds: ranks find out whether what each of them has at one step is the same.

    every rank  said/RANK   one digest over all that it asks about
    rank 0      verdict     all are the same, and which rank captures what; or "each"
    every rank  each/RANK   the digest of each tensor, when the verdict is "each"
    rank 0      apart       what is the same, and what is not

A round is named by its step, so that a rank which begins one alone shifts no counter: nobody
answers it. A save asks the Store whether there are answers, and goes on. Only for tensors that are
new it waits, some seconds once: all ranks meet them at the same step.
"""

import collections
import hashlib
import json
import logging
import math
import re
import time

from libckpt.core import _frameworks, _tensors

logger = logging.getLogger("libckpt")

WAIT_SECONDS = 5.0
PAUSE = 0.002
OPEN_MAX = 4  # Rounds that nobody has answered; an older one is forgotten.
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LOOK_EVERY = 1.0  # Seconds between two looks for what rank 0 announces.
NEVER = ("never", "0", "")


class Rounds:
    def __init__(self, ranks, rule):
        self._ranks, self._rule = ranks, rule
        self._open = collections.deque(maxlen=OPEN_MAX)
        self._is_broken = False

    def begin(self, step, tensors, digested, waits):
        """The verdicts that came while it waited, each (owners, names that differ)."""
        if self._is_broken:
            return []
        # Taken now: tensors may change, and move.
        digests = _frameworks.rank_adapter().Digests({name: tensors[name] for name in digested})
        facts = {
            name: (_tensors.stored_form(tensor), tensor.nbytes, _tensors.address_of(tensor))
            for name, tensor in tensors.items()
        }
        self._open.append((step, _verdict(self._ranks, self._rule, step, facts, digests)))
        verdicts = self.heard()
        ends = time.monotonic() + WAIT_SECONDS
        while waits and self._open and self._open[-1][0] == step and not self._is_broken:
            if time.monotonic() > ends:
                logger.warning(
                    "libckpt: job %s: rank %d has %d tensor(s) at step %d that not all ranks "
                    "have named within %.0f s: it captures them itself until they do",
                    self._ranks.job, self._ranks.rank, len(tensors), step, WAIT_SECONDS,
                )  # fmt: skip
                break
            time.sleep(PAUSE)
            verdicts += self.heard()
        return verdicts

    def heard(self):
        """The verdicts that have come."""
        verdicts = []
        try:
            for each in list(self._open):
                verdict = next(each[1])  # Never waits for another rank.
                if verdict is not None:
                    verdicts.append(verdict)
                    self._open.remove(each)
        except RuntimeError as error:  # A Store raises it.
            self._is_broken = True
            self._open.clear()
            logger.error("libckpt: job %s: replicas are not compared any more: %s",
                         self._ranks.job, error)  # fmt: skip
        return verdicts


def _verdict(ranks, rule, step, facts, digests):
    """Yields None each time that something has not come yet, and then the verdict."""
    while not digests.are_ready():
        yield None
    numbers = digests.result()
    parts = {
        name: [[*form, numbers.get(name)], size, place]
        for name, (form, size, place) in facts.items()
    }
    forms = sorted((name, each[0]) for name, each in parts.items())
    fold = hashlib.sha256(json.dumps(forms).encode()).hexdigest()
    verdict = yield from _answer(
        ranks, step, "verdict", "said", fold,
        lambda folds: rule([parts]) if len(set(folds)) == 1 else None,
    )  # fmt: skip
    if verdict is None:  # Not all is the same.
        verdict = yield from _answer(
            ranks, step, "apart", "each", json.dumps(parts),
            lambda said: rule([json.loads(one) for one in said]),
        )  # fmt: skip
    yield verdict


def _answer(ranks, step, word, asked, own, rule):
    """Rank 0's answer, by the rule, to what all ranks say; yields None until that has come."""
    store, key = ranks.store_for(f"replicas/{step}")
    if ranks.rank != 0:
        store.set(f"{key}/{asked}/{ranks.rank}", own)
        while not store.check([f"{key}/{word}"]):
            yield None
        return json.loads(store.get(f"{key}/{word}"))
    others = [f"{key}/{asked}/{rank}" for rank in range(1, ranks.world_size)]
    while not store.check(others):
        yield None
    said = [own, *(store.get(other).decode() for other in others)]
    for other in others:
        store.delete_key(other)
    found = rule(said)
    store.set(f"{key}/{word}", json.dumps(found))
    return found


class Schedule:
    """When what is shared is compared again: for each save to storage.

    With an interval in steps, at its multiples. With one in time rank 0 announces a step, early
    enough for the others to see it.
    """

    def __init__(self, ranks, interval):
        self._ranks = ranks
        text = str(interval if interval is not None else "never")
        self._steps = int(text) if text.isdigit() else 0
        self._seconds = 0.0 if text in NEVER or text.isdigit() else _seconds_of(text)
        self._compared_at = time.monotonic()
        self._looked_at = 0.0
        self._seen = None  # (step, time) of the newest save.
        self._next = None  # The step that was announced.
        self._number = 0

    def is_due(self, step):
        if self._steps:
            return step % self._steps == 0
        if not self._seconds or not self._ranks.are_several:
            return False
        now = time.monotonic()
        try:
            if self._next is None:
                self._next = self._announce(step, now) if self._ranks.rank == 0 else self._look(now)
        except RuntimeError as error:
            self._seconds = 0.0
            logger.error("libckpt: job %s: replicas are not compared any more: %s",
                         self._ranks.job, error)  # fmt: skip
        self._seen = (step, now)
        if self._next is None or step < self._next:
            return False
        self._next, self._compared_at = None, now
        return True

    def _announce(self, step, now):
        if now - self._compared_at < self._seconds or self._seen is None or step <= self._seen[0]:
            return None
        pace = max(now - self._seen[1], 1e-3)
        lead = 3 + math.ceil(3 * LOOK_EVERY / pace)
        found = step + lead * (step - self._seen[0])
        store, key = self._ranks.store_for("replicas/next")
        store.set(f"{key}/{self._number}", str(found))
        self._number += 1
        return found

    def _look(self, now):
        if now - self._looked_at < LOOK_EVERY:
            return None
        self._looked_at = now
        store, key = self._ranks.store_for("replicas/next")
        if not store.check([f"{key}/{self._number}"]):
            return None
        self._number += 1
        return int(store.get(f"{key}/{self._number - 1}"))


def _seconds_of(text):
    """0: it is no duration, which the library refuses."""
    parts = re.findall(r"([0-9.]+)\s*([a-z]+)", text)
    return sum(float(count) * UNITS.get(unit, 0.0) for count, unit in parts)
