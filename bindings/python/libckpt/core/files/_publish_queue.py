"""Publish queue: saves that are captured, on their way to files that a program will see.

A save is posted with what publishes it. It is published once its step is on storage, in the order
of the calls over all queues: looked for at each call, after each step of any optimizer while
something waits, and at the end of the process. No thread of Python is needed for that.
"""

import atexit
import contextlib
import hashlib
import itertools
import logging
import os
import pathlib
import re
import shutil
import time
import typing

from libckpt import errors
from libckpt.core import _frameworks
from libckpt.core.files import _disk, _full, _late, _storage, _unsaved
from libckpt.core.files._turns import turn
from libckpt._init import init
from libckpt.ticket import outcome_text

logger = logging.getLogger("libckpt")

SLOT_DEADLINE = 120.0  # How long a save waits for memory.
DURABLE_DEADLINE = 600.0
COMMITTED_DEADLINE = 10.0  # A save waits for the one before: milliseconds, unless a rank is gone.
SILENT_MAX = 10.0  # A longer wait is logged.
FAILING_DEADLINE = 3.0  # From when storage fails on, as on a full disk; not for slow storage.
FAILED_DEADLINE = 1.0  # The same, of a save that begins when storage fails already.
LOOK_EVERY = 0.02  # Seconds, for a step that the daemon brings to storage.
FAILURE_LOOK = 0.5  # Seconds, for a failure on the way there.
EXIT_DEADLINE = 60.0  # A full disk must not keep the process from ending.
KEPT = 2  # Steps of a queue on storage: published files have names of their own.
MEMBERS_MAX = 12
TAKEN_OVER = "was taken over"  # As the library says it: for good.
# Between steps that several ranks number alike. When a rank missed one, the ranks agree to capture
# from a step on that is up to 64 higher: the next save is to be above that.
STRIDE = 100

_order = itertools.count()
_queues = []
_watching = []


class Waiting(typing.NamedTuple):
    number: int  # Over all queues.
    step: int
    publish: typing.Callable
    weights: str | None


class PublishQueue:
    """The session of one directory, and the saves that are not published yet. `advice`: what helps
    a user of the framework against a full disk; its option decides what stays there."""

    def __init__(self, job, directory, allow_pickle=True, advice="make room there", **options):
        _disk.make_directory(pathlib.Path(directory).parent)
        self.session = init(job, directory, save_storage_interval=1, max_ckpt_num=KEPT,
                            raise_on_error=True, allow_pickle=allow_pickle, **options)  # fmt: skip
        self.directory, self._advice = pathlib.Path(directory), advice
        self.waiting = []  # Each a Waiting, the oldest first.
        self.late = _late.Late()
        self.users = 1  # Objects that have it; see _shared_queues.
        self.keeps_none = False  # Its steps go with it: each has a name elsewhere by then.
        self._process, self._has_begun = os.getpid(), False
        newest = max((step for step, _ in _storage.steps(self.directory)), default=0)
        self._step = self.session.ranks.decide("newest step", newest, max)
        _queues.append(self)

    def capture(self, items):
        """Captures the items; returns the queue's own step. It waits for memory, not storage."""
        patience = self.patience()
        deadline = time.monotonic() + patience
        while True:
            self._begin(items, deadline)
            self._step += 1  # Also of a retry: the session counts the one that was skipped.
            ticket = self.session.save(self._step, items)
            if ticket:
                return self._step
            if ticket.outcome == "disabled":
                raise errors.Unavailable(f"the save {outcome_text(ticket.outcome)}")
            if time.monotonic() > deadline:
                raise errors.Unavailable(
                    f"the save {outcome_text(ticket.outcome)}, for {patience:.0f} s: "
                    "`ckpt status` says what holds the memory, or keeps it from storage"
                )
            if ticket.outcome != "skipped_no_slot":
                self.session.prepare(items)
            time.sleep(0.005)  # A Slot becomes free when a step is on storage.

    def next_step(self):
        """The number of the next step, which is the same on all ranks that ask alike."""
        self._step += STRIDE
        return self._step

    def capture_as(self, step, items):
        """Captures this rank's part of the step, of that number on all ranks."""
        self._begin(items, time.monotonic() + SLOT_DEADLINE)
        self.session.prepare(items)
        ticket = self.session.save(step, items, wait=self.patience())
        if not ticket:
            raise errors.Unavailable(f"the save {outcome_text(ticket.outcome)}")

    def patience(self):
        """How long a save waits for memory: while storage fails, none becomes free soon."""
        return FAILED_DEADLINE if self._is_failing() else SLOT_DEADLINE

    def _is_failing(self):
        # As the daemon says of storage alone.
        return re.search(r"\bstored\b", self.session.counts().get("notice") or "")

    def _begin(self, items, deadline):
        """Publishes an earlier process's leftovers, or gives them up: none of them is restored."""
        while not self._has_begun:
            try:
                self.session.prepare(items)
                self.session.start_fresh()
                self._has_begun = True
            except errors.Unavailable as error:
                if time.monotonic() > deadline or TAKEN_OVER in str(error):
                    raise
                time.sleep(LOOK_EVERY)

    def post(self, step, publish, weights=None):
        """`publish(step directory, files by member)` is called when the step is on storage.

        `publish.paths`: the files that it makes, for messages. `publish.given_up()`, where it has
        that, is called instead of an error when the ranks did not all capture the step.
        `weights` is the name for the file that holds the items that are tensors. A step that a
        newer one overtook on the way there is published as (None, None).
        """
        self.waiting.append(Waiting(next(_order), step, publish, weights))
        _watch()

    def publish_first(self, deadline):
        """Publishes the oldest save if it is on storage by then; returns whether it is done."""
        number, step, publish, weights = self.waiting[0]
        is_patient = deadline >= FAILING_DEADLINE
        if _full.has_waited(number) and self._is_failing():
            deadline = min(deadline, FAILED_DEADLINE)
        try:
            if deadline > 0:
                self._await(step, deadline, publish.paths)
            newest = self.session.counts()["durable"]
            if newest is None or newest < step:
                return False
            self.late.publish(self.directory, newest)
            publish(*_storage.find_step(self.directory, step, weights))
        except (errors.CheckpointError, OSError) as error:
            if isinstance(error, errors.Unavailable) and deadline <= 0:
                return False
            self._give_up(error, is_patient)
            return True
        self.waiting.pop(0)
        return True

    def _give_up(self, error, is_patient):
        is_late = isinstance(error, errors.Unavailable) and bool(self._is_failing())
        if is_patient and is_late:
            _full.give_up(max(each.number for queue in _queues for each in queue.waiting))
        saved = self.waiting.pop(0)
        publish, why = saved.publish, _full.advised(error, self._advice)
        _unsaved.note(publish.paths, why)
        if isinstance(error, errors.NotFound) and hasattr(publish, "given_up"):
            publish.given_up()
            return
        if is_late:
            self.late.add(saved)
        logger.error(
            "libckpt: %s is not published: %s (`ckpt status` and the daemon's log show what "
            "keeps it from storage)%s",
            publish.paths[0], why, "; it may still come, once storage works again" * is_late,
        )  # fmt: skip

    def publish_late(self):
        with contextlib.suppress(errors.CheckpointError):
            self.late.publish(self.directory, self.session.counts()["durable"])

    def _await(self, step, deadline, paths):
        left, waited, patience, is_silent = deadline, 0.0, FAILING_DEADLINE, True
        while True:
            part = min(left, patience, FAILURE_LOOK, SILENT_MAX)
            try:
                return self.session.wait(step, "durable", part)
            except errors.Unavailable as error:
                left, waited = left - part, waited + part
                patience = patience - part if self._is_failing() else FAILING_DEADLINE
                if min(left, patience) <= 0:
                    raise
                if is_silent and waited >= SILENT_MAX:
                    is_silent = False
                    logger.warning(
                        "libckpt: the newest save to %s is not on storage yet: %s; it is waited "
                        "for, up to %.0f s more (`ckpt status` says what keeps it from there)",
                        paths[0], _full.advised(error, self._advice), min(left, patience),
                    )  # fmt: skip

    def is_ours(self):
        """Not in a fork, and not closed."""
        return self._process == os.getpid() and not self.session.is_closed

    def close(self):
        """Each of its users calls it once; the last one ends it."""
        self.users -= 1
        if self.users <= 0:
            self.end()

    def end(self):
        """Forgets what waits, and frees the job's memory."""
        leaves_steps = self.waiting or not self.keeps_none
        self.waiting.clear()
        self.late.forget()
        if self in _queues:
            _queues.remove(self)
        is_there = self.directory.is_dir()  # Else its user has deleted it, with all its steps.
        deadline = min(self.patience(), EXIT_DEADLINE if is_there else FAILED_DEADLINE)
        with contextlib.suppress(errors.CheckpointError):
            self.session.close(deadline)
            for _, path in [] if leaves_steps else _storage.steps(self.directory):
                shutil.rmtree(path, ignore_errors=True)


def job_of(kind, name, directory):
    """The job that publishes there: readable, and another one for each directory."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60]
    return f"{kind}-{readable}-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"


def settle_to(queue, left, deadline=None):
    """Waits until at most so many saves of the queue are on their way: of those a newer one may
    overtake all but the first."""
    ends = time.monotonic() + (queue.patience() if deadline is None else deadline)
    while len(queue.waiting) > left:
        first = _first()  # None in a fork, whose copy of the queue is not its own.
        if first is None or not first.publish_first(max(0.0, ends - time.monotonic())):
            return
    if queue.waiting and queue.is_ours():  # Once it is committed, it goes to storage.
        with contextlib.suppress(errors.CheckpointError):
            queue.session.wait(queue.waiting[0].step, "committed", COMMITTED_DEADLINE)


def _first():
    """The queue with the oldest save that waits; none: nothing waits."""
    queues = [queue for queue in _queues if queue.waiting and queue.is_ours()]
    return min(queues, key=lambda queue: queue.waiting[0].number, default=None)


def _with_late():
    return [queue for queue in _queues if queue.late and queue.is_ours()]


def settle(wait=False, deadline=None):
    """Publishes what is on storage by now; with `wait`, all that was posted."""
    deadline = DURABLE_DEADLINE if deadline is None else deadline
    ends = time.monotonic() + (deadline if wait else 0)
    with turn(wait) as is_ours:
        for queue in _with_late() if is_ours else ():
            queue.publish_late()
        while is_ours and (first := _first()) is not None:
            if not first.publish_first(ends - time.monotonic() if wait else 0):
                return
        if is_ours and not _with_late():
            _unwatch()


def waiting_paths():
    """The paths that are not published yet."""
    queues = [queue for queue in _queues if queue.is_ours()]
    waiting = [saved for queue in queues for saved in queue.waiting]
    return [str(path) for saved in waiting for path in saved.publish.paths]


def _watch():
    if not _watching:
        for adapter in _frameworks.adapters():
            _watching.append(adapter.watch_steps(settle) or (lambda: None))


def _unwatch():
    while _watching:
        _watching.pop()()


@atexit.register
def _leave():
    settle(wait=True, deadline=EXIT_DEADLINE)
    for path in waiting_paths():
        logger.error("libckpt: the process ends, and %s is not there yet: the next process that "
                     "saves to that place publishes it, if the daemon has stored it by then",
                     path)  # fmt: skip
    for queue in [queue for queue in _queues if queue.is_ours() and not queue.waiting]:
        queue.end()  # All of it is published: nobody comes back for its memory.
