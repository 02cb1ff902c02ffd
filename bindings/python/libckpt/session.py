"""Session: a trainer's handle on libckpt.

A save copies the items' tensors into memory that the node's daemon owns, and returns; it waits for
no storage, network or peer. By default a failure is logged and counted, never raised into training.
"""

import contextlib
import json
import os
import time

from libckpt import errors
from libckpt.core import _arrays, _between, _common, _failures, _flush, _frameworks, _items
from libckpt.core import _launch, _metrics, _mutations, _open_sessions, _progress, _registration
from libckpt.core import _replicas, _restorer, _settings, _shapes, _signals, _turn
from libckpt.ticket import LEVELS, Ticket

DEADLINE = 60.0


class Session:
    """One at a time for a job and rank in a process; calls come from any thread, and wait for one
    another where they must."""

    def __init__(self, options, *, raise_on_error=False, allow_pickle=False, debug=False):
        options, self.ranks = _launch.complete(options)
        self.job, self.dir = options["job"], _settings.directory(options)
        self.rank, self.world_size = options.get("rank", 0), options.get("world_size", 1)
        _open_sessions.check_free(self.job, self.rank)
        self._raise, self._allow_pickle = raise_on_error, allow_pickle
        self._process, self._turn = os.getpid(), _turn.Turn()
        self._tensors = _launch.opened(self.ranks, _registration.Registration, options, debug)
        self._client = self._tensors.client
        self._between = _between.Between(options, self._client, self._turn)
        self._common = _common.Common(self._client)
        self._replicas = _replicas.Replicas(self.ranks, _settings.storage_interval(options))
        self._restorer = _restorer.Restorer(
            self._tensors, self.ranks, self._replicas, self.dir, allow_pickle
        )
        self._known = _items.Known()  # From the newest save's look at its tensors.
        self._failures = _failures.Failures(self.job, options)
        self._must_confirm = self._restore_failure = None
        _open_sessions.sessions.add(self)

    # --- saving ---

    def guard(self, *optimizers):
        """From now on the optimizers' parameters and state may be copied after a save returned.

        Each step of any optimizer waits for what is left first. When something else changes them
        meanwhile, that capture is dropped and logged by name, and they are copied before a save
        returns from then on. Takes what accelerate and Lightning make of an optimizer, too.
        """
        before_step = _turn.while_alive(self._before_step)
        for optimizer in [_frameworks.guardable(given) for given in optimizers]:
            self._tensors.guard(optimizer, before_step)
        return self

    def save_checkpoint_if_needed(self, step, items, *, arrays=(), metrics=None, common=()):
        """Captures the step if it is due by `save_mem_interval`. Returns a Ticket.
        `items`: by name, or a function that returns them, called if the step is due; several ranks
        call it for each step where the interval is a time. If it raises, the save fails. `arrays`:
        parts of larger tensors, which any number of ranks restores, or such a function. `metrics`:
        numbers by name, or a function for a step that is due; `keep_best` reads rank 0's.
        `common`: names of items that are the same on all ranks; differences are reported."""
        return self._save(step, items, (arrays, metrics, common), always=False)

    def save(self, step, items, wait=0, *, arrays=(), metrics=None, common=()):
        """The same, due or not. Without a free Slot in `wait` seconds the step is skipped: wait in
        the last step of a training, which no later one replaces, on all ranks alike."""
        return self._save(step, items, (arrays, metrics, common), always=True, wait=wait)

    def finish_capture(self):
        """When it returns, the running capture has left the tensors; `guard` calls it by itself.
        On a GPU: for what is queued from now on, on the streams that are current."""
        self._finish_capture(self._tensors.finish_here)

    def _before_step(self, optimizer):
        self._finish_capture(lambda: self._tensors.before_step(optimizer))

    def _finish_capture(self, finish):
        try:
            if not self._is_out_of_reach() and not self.is_closed:
                finish()
        except errors.CheckpointError as error:
            self._failures.log(error)

    def _save(self, step, items, more, always, wait=0):
        began = time.perf_counter()
        if self._is_out_of_reach():
            return Ticket(self, step, "skipped_unavailable", 0.0)
        try:
            step = _turn.step_number(step)
            if not always and self._between.has(step):
                return Ticket(self, step, "not_due", 0.0)
            if not always and self.world_size > 1 and self._between.may_divide_ranks:
                items, more = _turn.tried(items), (_turn.tried(more[0]), *more[1:])  # On all ranks.
            with self._turn:
                if not always and self._is_not_due(step):
                    self._confirm(step)
                    return Ticket(self, step, "not_due", time.perf_counter() - began)
                with self._failures.given_up(self._tensors, step):
                    outcome = self._failures.end_with(
                        self._capture(step, items, more, always, wait)
                    )
                self._confirm(step)
        except Exception as error:  # A state_dict() of the user's may raise anything.
            _signals.raise_of_handler(error)
            self._failures.of_save(error)
            if self._raise:
                raise
            outcome = "failed"
        return Ticket(self, step, outcome, time.perf_counter() - began)

    def _is_not_due(self, step):
        """Asks the library, which knows by time; nothing has been collected for the save yet."""
        self._check_open()
        return not self._client.is_due(step)

    def _capture(self, step, items, more, always, wait):
        self._check_open()
        if self._restore_failure is not None:
            raise errors.InvalidArgument(
                f"save step {step}: refused, since the restore before it failed "
                f"({self._restore_failure}) and what is stored may be good; restore again, or call "
                "start_fresh() to begin without it"
            )
        items, arrays = _turn.made(items), _turn.made(more[0])
        with _turn.no_collection():
            flattened = self._replicas.flatten(step, items, self._allow_pickle, self._known)
            pieces, metrics = _arrays.Arrays(arrays, flattened[1]), _metrics.named(step, more[1])
            self._common.state(step, more[2], items, self._allow_pickle)
            with self._tensors.mutations.addresses:
                return self._tensors.capture(step, flattened, pieces, always, wait, metrics)

    def _confirm(self, step):
        """Training got on after a restore: the step it began with is not suspect."""
        if self._must_confirm is not None and step > self._must_confirm:
            self._client.restored_ok(self._must_confirm)
            self._must_confirm = None

    # --- restoring ---

    def agree(self, what, error):
        """Returns when no rank reports an error; else all of them raise. All ranks call it."""
        self._check_open()
        self.ranks.agree(what, error)

    def prepare(self, items, *, arrays=()):
        """Makes room for `items` now, so that the first save need not wait."""
        self._check_open()
        with self._turn:
            self._restorer.prepare(items, arrays)

    def restore(
        self, into=None, step=None, strict=True, *, arrays=(), path=None, renamed=None,
        shapes_only=False, source=None,
    ):  # fmt: skip
        """The newest step that all ranks can have, or `step`, into the items of `into`; or the
        newest at `path`: a checkpoint of any job, a run's directory, or a parent of such ones.

        Modules, parameters and tensors are filled where they are; objects by `load_state_dict`;
        dictionaries are updated. `Restored.items` has all items as plain values; it alone has
        numbers and strings; the log names those that differ. With strict, names and shapes must be
        those of `into`; without, what fits is taken, and `Restored` names the rest; arrays of
        another type or shape are refused all the same. `renamed`: names there, or their beginning
        up to a dot, and what they are here: {"model.encoder": "model.backbone"}. `shapes_only`: a
        TensorShape for each tensor; without `path`, a restore must follow. `source`: from "memory"
        alone, or "storage". A name in `arrays`: made anew, all of it, in `Restored.arrays`. Another
        number of ranks may have saved the step: each fills its own parts in `arrays`; a new one has
        another's items (`Restored.items_of`), and random generators anew; a warning names arrays
        that no rank gives. Raises NotFound when there is nothing: train from the beginning. Else,
        also without that `step`, saves are refused until a restore or `start_fresh` succeeds."""
        step, path = _turn.step_or_path(step, path, source)
        wish = _restorer.Wish(into or {}, step, strict, arrays, path, renamed, shapes_only, source)
        restored, is_known = self._restored(wish)
        if is_known or not shapes_only:
            self._restore_failure = _shapes.refusal(restored.step) if shapes_only else None
            self._must_confirm = restored.step if is_known else None
        return restored

    def initialize_from(self, path, into, strict=True, *, arrays=(), renamed=None):
        """Begins other training: `into`, as {"model": model}, from the newest checkpoint at `path`,
        and nothing else of it. All ranks call it, where a restore found nothing."""
        wish = _restorer.Wish(into, None, strict, arrays, _turn.path_text(path, None), renamed)
        return self._restored(wish.of_other_training())[0]

    def _restored(self, wish):
        self._check_open()
        with self._turn, _progress.shown(self._client, self.rank):
            try:
                return self._restorer.restore(wish)
            except Exception as error:
                if not isinstance(error, errors.NotFound):
                    self._restore_failure = error
                raise

    def start_fresh(self):
        """Begins anew from the state as it is, as for a second training in one program; all ranks
        call it, or none. A first save does it where the job has no step, if no restore failed."""
        self._check_open()
        self._client.start_fresh()
        self._restore_failure = self._must_confirm = None

    def restore_or(self, into, default=None, strict=True, *, step=None, arrays=(), path=None,
                   renamed=None, source=None):  # fmt: skip
        """The step that was restored into the items, or `default` where there is nothing."""
        try:
            return self.restore(into, step, strict, arrays=arrays, path=path, renamed=renamed,
                                source=source).step  # fmt: skip
        except errors.NotFound as error:
            self._failures.log_not_found(error, step if path is None else path, self.rank)
            return default

    @property
    def latest(self):
        """The newest committed step of this session, or None."""
        return self.counts()["committed"]

    def wait(self, step, level, deadline=DEADLINE):
        """Waits until the step, or a newer one, is captured, replicated, committed or durable.
        Raises NotFound at once, and why, where no save can bring it there."""
        self._check_open()
        step, may_judge = _turn.step_number(step), self._tensors.finish_if_judged_here()
        try:
            self._client.wait(step, level, deadline)
        except errors.Unavailable as error:
            if may_judge:
                raise
            raise errors.Unavailable(f"{error}; {_mutations.UNJUDGED}") from error

    def flush(self, deadline=DEADLINE):
        """Waits until the step whose save began last is on storage, or the newest committed one if
        that was given up. All ranks call it. Does nothing without a directory."""
        self._check_open()
        self._tensors.finish_if_judged_here()
        if self.dir:
            _flush.newest(self, self._tensors.mutations.newest_started, deadline)

    def status(self):
        """This session's counts, and under "daemon" what `ckpt status --json` says of the job
        (nodes, Slots, steps); None there when the daemon cannot be asked."""
        daemon = None
        if not self._is_out_of_reach() and not self.is_closed:
            with contextlib.suppress(errors.CheckpointError):
                daemon = json.loads(self._client.status() or "null")
        return self.counts() | {"daemon": daemon}  # With the levels that came before its answer.

    def counts(self):
        """The newest step of each level, saves, skips, failures; asks nobody and never waits."""
        if self._is_out_of_reach() or self.is_closed:
            status = dict.fromkeys(LEVELS)
        else:
            self._tensors.mutations.judge_copied()
            status = self._client.stats()
        status |= {"job": self.job, "rank": self.rank, "dir": self.dir}
        return self._failures.added_to(status)

    def close(self, deadline=DEADLINE):
        """Flushes the newest committed step, or raises; frees memory, if it saved or has a dir."""
        self._end(lambda client: client.close(deadline))

    def abandon(self):
        """Lets go without closing, as a death would: the daemon keeps what it holds."""
        self._end(lambda client: client.drop())

    @property
    def is_closed(self):
        return self._client is None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        (self.close if kind is None else self.abandon)()  # A new trainer may want the state.

    def __del__(self):
        try:  # While a capture still reads tensors that only the session holds.
            self.abandon()
        except Exception:  # At the end of the program modules may go before the session does.
            pass

    def _end(self, end):
        if self.is_closed or self._is_out_of_reach():
            return
        with contextlib.suppress(errors.CheckpointError):  # An unjudged capture is dropped.
            self._tensors.finish_if_judged_here(is_over=True)
        client, self._client = self._client, None
        _open_sessions.sessions.discard(self)
        try:
            end(client)  # Waits for the running capture, which still reads what is held.
        finally:
            self._tensors.let_go()

    def _check_open(self):
        _turn.check_open(self.job, self.is_closed, self._is_out_of_reach())

    def _is_out_of_reach(self):
        """A forked worker has a copy of the session, which is not its own."""
        return os.getpid() != self._process
