"""Session: a trainer's handle on libckpt.

A save copies the items' tensors into memory that the node's daemon owns, and returns; nothing of it
waits for storage, network or a peer. By default a save that fails is logged and counted, and never
raises into training.
"""

import atexit
import contextlib
import gc
import json
import logging
import operator
import os
import re
import threading
import time
import weakref

from libckpt import _programs, errors
from libckpt.core import _fill, _frameworks, _gather, _giver, _items, _launch, _progress
from libckpt.core import _registration, _replicas, _restore, _settings
from libckpt.ticket import LEVELS, Ticket

logger = logging.getLogger("libckpt")

DEADLINE = 60.0
OVERWRITTEN = (
    "the restore overwrote a part of the tensors and then failed: do not train on with them"
)
UNJUDGED = (
    "the capture is judged by the thread that trains, in its next step, save or wait: another "
    "thread cannot tell whether that is writing"
)
FAILURES_TOLD_EVERY, FAILURES_KNOWN = 60.0, 64
STEP_MAX = (1 << 63) - 1
_DIGITS = re.compile(r"\d+")

_sessions = weakref.WeakSet()
_jobs_here = weakref.WeakValueDictionary()  # By (job, rank): the session of this process.


class Session:
    """One at a time for a job and rank in a process; calls come from any thread, and wait for one
    another where they must."""

    def __init__(self, options, *, raise_on_error=False, allow_pickle=False, debug=False):
        options, self._ranks = _launch.complete(options)
        if not _settings.told("daemon_path") and _programs.daemon_path():
            options.setdefault("daemon_path", _programs.daemon_path())
        if not _settings.told("blob_capacity"):
            options.setdefault("blob_capacity", _registration.BLOB_CAPACITY)
        self.job, self.dir = options["job"], _settings.directory(options)
        self.rank, self.world_size = options.get("rank", 0), options.get("world_size", 1)
        self._key = (self.job, self.rank)
        other = _jobs_here.get(self._key)
        if other is not None and not other.is_closed:
            raise errors.InvalidArgument(
                f"job {self.job}: this process has a session of it already: close that one first"
            )
        self._interval = options.get("save_mem_interval")
        self._raise = raise_on_error
        self._allow_pickle = allow_pickle
        self._process = os.getpid()
        self._turn = _Turn()
        self._tensors = _registration.Registration(options, debug)
        self._client = self._tensors.client
        self._replicas = _replicas.Replicas(self._ranks, _settings.storage_interval(options))
        self._gather = _gather.Gather(self._tensors, self._ranks, self.dir)
        self._known = _items.Known()  # What the newest save told of its tensors.
        self._told = {}  # When each kind of failure was told last.
        self._failed = 0
        self._last_error = ""
        self._must_confirm = None
        self._restore_failure = None
        _jobs_here[self._key] = self
        _sessions.add(self)

    # --- saving ---

    def guard(self, *optimizers):
        """From now on the optimizers' parameters and state may be copied after a save returned.

        Each step of any optimizer waits for what is left first. When something else changes them
        meanwhile, that capture is dropped and told by name, and they are copied before a save
        returns from then on. Takes what accelerate and Lightning make of an optimizer, too.
        Returns the session.
        """
        session = weakref.ref(self)

        def before_step(optimizer):
            alive = session()
            if alive is not None:
                alive._before_step(optimizer)

        for optimizer in [guardable(given) for given in optimizers]:
            self._tensors.guard(optimizer, before_step)
        return self

    def save_checkpoint_if_needed(self, step, items):
        """Captures the step if it is due by `save_mem_interval`. Returns a Ticket."""
        return self._save(step, items, always=False)

    def save(self, step, items):
        """The same, due or not."""
        return self._save(step, items, always=True)

    def finish_capture(self):
        """When it returns, the running capture has left the tensors; `guard` calls it by itself.

        On a GPU: for what is queued from now on, on the streams that are current.
        """
        self._finish_capture(self._tensors.finish_here)

    def _before_step(self, optimizer):
        self._finish_capture(lambda: self._tensors.before_step(optimizer))

    def _finish_capture(self, finish):
        if self._is_out_of_reach() or self.is_closed:
            return
        try:
            finish()
        except errors.CheckpointError as error:
            self._tell(error)

    def _save(self, step, items, always):
        began = time.perf_counter()
        if self._is_out_of_reach():
            return Ticket(self, step, "skipped_unavailable", 0.0)
        try:
            step = _number(step)
            if not always and self._is_between(step):
                return Ticket(self, step, "not_due", 0.0)
            with self._turn:
                if not always and self._is_not_due(step):
                    self._confirm(step)
                    return Ticket(self, step, "not_due", time.perf_counter() - began)
                outcome = self._capture(step, items, always)
                self._confirm(step)
        except Exception as error:  # A state_dict() of the user's may raise anything.
            self._failed += 1
            self._tell(error)
            if self._raise:
                raise
            outcome = "failed"
        return Ticket(self, step, outcome, time.perf_counter() - began)

    def _is_between(self, step):
        """Whether the interval is in steps, and this is none of them."""
        return type(self._interval) is int and self._interval > 0 and step % self._interval != 0

    def _is_not_due(self, step):
        """Asks the library, which knows by time; nothing has been collected for the save yet."""
        self._check_open()
        return not self._client.is_due(step)

    def _capture(self, step, items, always):
        self._check_open()
        if self._restore_failure is not None:
            raise errors.InvalidArgument(
                f"save step {step}: refused, since the restore before it failed "
                f"({self._restore_failure}) and what is stored may be good; restore again, or call "
                "start_fresh() to begin without it"
            )
        with _no_collection():
            taken = self._replicas.take(step, items, self._allow_pickle, self._known)
            return self._tensors.capture(step, taken, always)

    def _confirm(self, step):
        """Training got on after a restore: the step it began with is not suspect."""
        if self._must_confirm is not None and step > self._must_confirm:
            self._client.restored_ok(self._must_confirm)
            self._must_confirm = None

    # --- restoring ---

    def agree(self, what, error):
        """Returns when no rank tells an error; else all of them raise. All ranks call it."""
        self._check_open()
        self._ranks.agree(what, error)

    def prepare(self, items):
        """Makes room for `items` now, so that the first save need not wait."""
        self._check_open()
        with self._turn:
            self._prepare(items)

    def _prepare(self, items):
        if self._ranks.are_several:
            room = self._replicas.expected_bytes(items, self._tensors.optimizers, self._allow_pickle)
            self._tensors.reserve({}, {}, room)
            return
        _, tensors, members = _items.take_all(items, self._allow_pickle)
        views = self._tensors.view(tensors)
        self._tensors.reserve(views, members, self._tensors.expected_bytes(views))

    def restore(self, into=None, step=None, strict=True):
        """The newest step that all ranks can have, or `step`, into the items of `into`.

        Modules, parameters and tensors are filled where they are; what has `load_state_dict` gets
        its state; dictionaries are updated. `Restored.items` has all items as plain values; of
        numbers, strings and tuples only it has them, and the log names those that differ. With
        strict, names and shapes must be those of `into`; without, what fits is taken.
        What another number of ranks saved comes from storage; a rank that was not there has the
        rest of rank 0's, and its random generators are seeded anew.
        Raises NotFound when there is nothing: train from the beginning. After any other failure,
        or when `step` is asked for first and is not there, saves are refused until a restore
        succeeds, or `start_fresh` is called.
        """
        self._check_open()
        step = None if step is None else _number(step)
        with self._turn, _progress.shown(self._client, self.rank):
            try:
                restored = self._restore(into, step, strict)
            except errors.NotFound:
                raise
            except Exception as error:
                self._restore_failure = error
                raise
            self._restore_failure = None
        return restored

    def start_fresh(self):
        """Begins without what is stored: a new timeline from the state as it is. All ranks or none.

        The first save does it by itself, but not after a restore that failed.
        """
        self._check_open()
        self._client.start_fresh()
        self._restore_failure = self._must_confirm = None

    def _restore(self, into, step, strict):
        into = into or {}
        taken = _items.take_all(into, self._allow_pickle)
        _, here, members = taken
        targets = _restore.Targets(
            into, taken, strict, self._ranks.are_several,
            lambda structure: _fill.check(
                into, _giver.outline(structure, self._allow_pickle), strict
            ),
        )  # fmt: skip
        self._make_room(into, here, members)
        answer, structure = self._gather.restore(step, targets)
        self._tensors.forget()
        try:
            values = self._give(into, answer, structure, targets, strict)
        except errors.CheckpointError as error:
            if not into:
                raise
            raise type(error)(f"{error}; {OVERWRITTEN}") from error
        self._must_confirm = answer["step"] if "path" not in answer else None
        return _restore.Restored(answer, values)

    def _give(self, into, answer, structure, targets, strict):
        """The items' values, with which `into` is filled."""
        found = targets.tensors(structure)
        values = _giver.give_all(structure, found, targets.members, self._allow_pickle)
        _fill.load(self._replicas.known_here(into, answer), values, strict)
        replaced = targets.replaced(found)
        if replaced:
            logger.warning(
                "libckpt: restore: %d tensor(s) in containers could not be filled where they are, "
                "new ones stand in their place: %s; they have another type or shape here, or share "
                "memory with what differs there: who holds the old ones must take the new ones",
                len(replaced),
                ", ".join(replaced[:5]),
            )
        return values

    def _make_room(self, into, here, members):
        """Slots for the step that is to come."""
        stored = self._stored_bytes()
        # The restore waits for them, and a job that begins need not.
        prepare = self._client.prepare_in_background
        if not self._ranks.are_several:
            views = self._tensors.view(here)
            expected = self._tensors.expected_bytes(views)
            self._tensors.reserve(views, members, max(stored, expected), prepare)
            return
        room = self._replicas.expected_bytes(into, self._tensors.optimizers, self._allow_pickle)
        self._tensors.reserve({}, {}, max(stored, room), prepare)

    def restore_or(self, into, default=None, strict=True):
        """The step that was restored into the items, or `default` when there is none."""
        try:
            return self.restore(into, strict=strict).step
        except errors.NotFound:
            return default

    @property
    def latest(self):
        """The newest committed step of this session, or None."""
        return self.counts()["committed"]

    def _stored_bytes(self):
        """What the newest checkpoint of the directory needs, so that it finds room here."""
        from libckpt.core.files import _storage

        shard = _storage.newest_shard(self.dir, self.rank) if self.dir else None
        return shard["slot_bytes"] if shard else 0

    # --- the rest ---

    def wait(self, step, level, deadline=DEADLINE):
        """Waits until the step, or a newer one, is captured, replicated, committed or durable."""
        self._check_open()
        step, may_judge = _number(step), self._tensors.finish_if_judged_here()
        try:
            self._client.wait(step, level, deadline)
        except errors.Unavailable as error:
            if may_judge:
                raise
            raise errors.Unavailable(f"{error}; {UNJUDGED}") from error

    def flush(self, deadline=DEADLINE):
        """Waits until the newest committed step is on storage; only with a directory."""
        committed = self.latest
        if self.dir and committed is not None:
            self.wait(committed, "durable", deadline)

    def status(self):
        """How things stand: this session's counts, and under "daemon" what `ckpt status --json`
        tells of the job (nodes, Slots, steps); None there when the daemon cannot be asked."""
        status = self.counts()
        status["daemon"] = None
        if not self._is_out_of_reach() and not self.is_closed:
            with contextlib.suppress(errors.CheckpointError):
                status["daemon"] = json.loads(self._client.status() or "null")
        return status

    def counts(self):
        """The newest step of each level, saves, skips, failures; asks nobody and never waits."""
        if self._is_out_of_reach() or self.is_closed:
            status = dict.fromkeys(LEVELS)
        else:
            self._tensors.judge_copied()
            status = self._client.stats()
        status["job"], status["rank"], status["dir"] = self.job, self.rank, self.dir
        status["failed"] = max(status.get("failed", 0), self._failed)
        status["last_error"] = status.get("last_error") or self._last_error
        return status

    def close(self, deadline=DEADLINE):
        """Flushes the newest committed step and frees the job's memory. Idempotent."""
        if not self.is_closed and not self._is_out_of_reach():
            self._end(lambda client: client.close(deadline))

    def abandon(self):
        """Lets go without closing, as a death would: the daemon keeps what it holds."""
        if not self.is_closed and not self._is_out_of_reach():
            self._end(lambda client: client.drop())

    @property
    def is_closed(self):
        return self._client is None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:
            self.abandon()  # The state may be wanted by who starts again.

    def __del__(self):
        # While a capture still reads tensors that only the session holds.
        with contextlib.suppress(Exception):
            self.abandon()

    def _end(self, end):
        with contextlib.suppress(errors.CheckpointError):  # What is not judged is dropped.
            self._tensors.finish_if_judged_here()
        client, self._client = self._client, None
        if _jobs_here.get(self._key) is self:
            del _jobs_here[self._key]
        try:
            end(client)  # Waits for the running capture, which still reads what is held.
        finally:
            self._tensors.let_go()

    def _check_open(self):
        if self.is_closed:
            raise errors.InvalidArgument(
                f"job {self.job}: the session was closed: open another with libckpt.init"
            )
        if self._is_out_of_reach():
            raise errors.InvalidArgument(
                f"job {self.job}: this process was forked from the trainer, which has the session: "
                "call it there"
            )

    def _is_out_of_reach(self):
        """A forked worker has a copy of the session, which is not its own."""
        return os.getpid() != self._process

    def _tell(self, error):
        self._last_error = str(error) or repr(error)
        now = time.monotonic()
        kind = _DIGITS.sub("", self._last_error)  # Of another step it is the same.
        if now - self._told.get(kind, float("-inf")) >= FAILURES_TOLD_EVERY:
            if len(self._told) >= FAILURES_KNOWN:
                self._told.clear()
            self._told[kind] = now
            logger.error(
                "libckpt: job %s: %s; training goes on, later failures are counted",
                self.job,
                self._last_error,
            )


def guardable(given):
    """The optimizer whose steps can be guarded; refuses what is none."""
    optimizer = _frameworks.first(lambda adapter: adapter.optimizer_of(given))
    if optimizer is None:
        raise errors.InvalidArgument(
            f"guard: {type(given).__name__} was given: an optimizer of torch is wanted, which has "
            "register_step_pre_hook"
        )
    return optimizer


def _number(step):
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number <= STEP_MAX:
        raise errors.InvalidArgument(
            f"step {step!r}: steps are whole numbers from 0 to {STEP_MAX}: give the count of the "
            "optimizer's steps"
        )
    return number


class _Turn:
    """One call at a time: another thread waits, and a call within a call is refused."""

    def __init__(self):
        self._lock = threading.RLock()
        self._is_taken = False

    def __enter__(self):
        self._lock.acquire()
        if self._is_taken:
            self._lock.release()
            raise errors.InvalidArgument(
                "called in the middle of another call of the same session, by a signal handler or "
                "a state_dict(): set a flag there, and save after the step"
            )
        self._is_taken = True

    def __exit__(self, *_):
        self._is_taken = False
        self._lock.release()


@contextlib.contextmanager
def _no_collection():
    """Thousands of small objects come and go here, none in a cycle: no reason to search the heap,
    which takes longer than the rest of a save."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@atexit.register
def _leave():
    # As a death would: the daemon keeps, and goes on to flush, what it holds.
    for session in list(_sessions):
        with contextlib.suppress(Exception):
            session.abandon()
