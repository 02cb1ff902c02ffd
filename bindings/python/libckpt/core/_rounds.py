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
        self._open.append(_Round(self._ranks, self._rule, step, tensors, digested))
        verdicts = self.heard()
        ends = time.monotonic() + WAIT_SECONDS
        while waits and self._open and self._open[-1].step == step and not self._is_broken:
            if time.monotonic() > ends:
                logger.warning(
                    "libckpt: job %s: rank %d has %d tensor(s) at step %d of which not all ranks "
                    "told within %.0f s: it captures them itself until they do",
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
                verdict = each.advance()
                if verdict is not None:
                    verdicts.append(verdict)
                    self._open.remove(each)
        except RuntimeError as error:  # What a Store raises.
            self._is_broken = True
            self._open.clear()
            logger.error("libckpt: job %s: replicas are not compared any more: %s",
                         self._ranks.job, error)  # fmt: skip
        return verdicts


class _Round:
    def __init__(self, ranks, rule, step, tensors, digested):
        self.step = step
        self._ranks, self._rule = ranks, rule
        self._store, self._key = ranks.store_for(f"replicas/{step}")
        asked = {name: tensors[name] for name in digested}
        self._digests = _frameworks.rank_adapter().Digests(asked)
        self._parts = {
            name: (_tensors.stored_form(tensor), tensor.nbytes, _place(tensor))
            for name, tensor in tensors.items()
        }
        self._own_parts = None
        self._stage = "begun"

    def advance(self):
        """The verdict; None: it has not come yet. Never waits for another rank."""
        while True:
            stage = self._stage
            verdict = getattr(self, f"_{stage}")()
            if verdict is not None or self._stage == stage:
                return verdict

    def _begun(self):
        if not self._digests.are_ready():
            return
        digests = self._digests.result()
        self._own_parts = {
            name: [[*form, digests.get(name)], size, place]
            for name, (form, size, place) in self._parts.items()
        }
        forms = sorted((name, each[0]) for name, each in self._own_parts.items())
        self._fold = hashlib.sha256(json.dumps(forms).encode()).hexdigest()
        self._say("said", self._fold)
        self._stage = "said"

    def _said(self):
        answer = self._answer("verdict", "said", self._fold, self._verdict_of)
        if answer == [None]:  # Not all is the same.
            self._say("each", json.dumps(self._own_parts))
            self._stage = "each"
        return answer and answer[0]

    def _verdict_of(self, folds):
        return self._rule([self._own_parts]) if len(set(folds)) == 1 else None

    def _each(self):
        answer = self._answer(
            "apart", "each", json.dumps(self._own_parts),
            lambda said: self._rule([json.loads(one) for one in said]),
        )  # fmt: skip
        return answer and answer[0]

    def _answer(self, word, asked, own, rule):
        """[what rank 0 finds by the rule in what all ranks said]; None: it has not come yet."""
        key = f"{self._key}/{word}"
        if self._ranks.rank != 0:
            return [json.loads(self._store.get(key))] if self._store.check([key]) else None
        said = self._from_all(asked, own)
        if said is None:
            return None
        found = rule(said)
        self._store.set(key, json.dumps(found))
        return [found]

    def _say(self, word, content):
        if self._ranks.rank != 0:
            self._store.set(f"{self._key}/{word}/{self._ranks.rank}", content)

    def _from_all(self, word, own):
        keys = [f"{self._key}/{word}/{rank}" for rank in range(1, self._ranks.world_size)]
        if not self._store.check(keys):
            return None
        found = [self._store.get(key).decode() for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return [own, *found]


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


def _place(tensor):
    return _tensors.address_of(tensor)
