"""Session: a trainer's handle on libckpt.

A save copies the items' tensors into memory that the node's daemon owns, and returns; nothing of it
waits for storage, network or a peer. By default a save that fails is logged and counted, and never
raises into training.
"""

import atexit
import contextlib
import json
import logging
import os
import time
import weakref
import zlib

from libckpt import _core, _launch, _programs, _tensors, errors, items as _items

logger = logging.getLogger("libckpt")

STRUCTURE = "libckpt.items"  # The blob that tells what the tensors are parts of.
ROOM = "libckpt.room"  # Stands for tensors that will come; never captured.
LEVELS = ("captured", "replicated", "committed", "durable")
BLOB_CAPACITY_MIN = 1 << 20
DEADLINE = 60.0
FAILURES_TOLD_EVERY = 60.0

_sessions = weakref.WeakSet()
_jobs_here = {}  # By (job, rank): the session of this process.


def init(job, dir=None, *, max_ckpt_num=None, keep=None, raise_on_error=False, allow_pickle=True,
         debug=None, **options):  # fmt: skip
    """Opens a session for this rank of `job`; the node's daemon is started when none runs.

    dir: where checkpoints are published; none: memory only.
    save_mem_interval: steps, or a time as "60s"; every step by default.
    save_storage_interval: likewise; never by default, "15min" when there is a directory.
    max_ckpt_num or keep: how many checkpoints stay on storage; all by default.
    raise_on_error: failing saves raise; else they are logged and counted.
    allow_pickle: False refuses what only a pickle could hold.
    debug: looks for tensors that change while they are captured; by default LIBCKPT_DEBUG=1.
    Everything else is an option of the library, under its name there.
    """
    if max_ckpt_num is not None and keep is not None:
        raise errors.InvalidArgument("give max_ckpt_num or keep: they are the same")
    given = {key: value for key, value in options.items() if value is not None}
    given["job"] = job
    if dir is not None:
        given["dir"] = os.path.abspath(os.fspath(dir))
        given.setdefault("save_storage_interval", "15min")
    count = max_ckpt_num if max_ckpt_num is not None else keep
    if count is not None:
        given["max_ckpt_num"] = count
    if debug is None:
        debug = os.environ.get("LIBCKPT_DEBUG") == "1"
    return Session(given, raise_on_error=raise_on_error, allow_pickle=allow_pickle, debug=debug)


class Future:
    """One level of one step."""

    def __init__(self, session, step, level):
        self._session, self._step, self._level = session, step, level

    def result(self, timeout):
        """Waits until the step, or a newer one, has reached the level."""
        self._session.wait(self._step, self._level, timeout)

    def done(self):
        newest = self._session.status()[self._level]
        return newest is not None and newest >= self._step


class Ticket:
    """What became of one call of save: `outcome`, and a Future for each level."""

    def __init__(self, session, step, outcome, exposed_seconds):
        self.step = step
        self.outcome = outcome  # "started", "not_due", "skipped_...", "failed", "disabled".
        self.exposed_seconds = exposed_seconds  # What the call cost the training thread.
        for level in LEVELS:
            setattr(self, level, Future(session, step, level))

    def __bool__(self):
        return self.outcome == "started"

    def __repr__(self):
        return f"Ticket(step={self.step}, {self.outcome}, {self.exposed_seconds * 1e3:.1f} ms)"


class Restored:
    """What a restore brought: the step, its source, and the items that were made anew."""

    def __init__(self, answer, values):
        self.step = answer["step"]
        self.timeline = answer["timeline"]
        self.source = answer["source"]  # "own_memory", "peer_memory" or "storage".
        self.source_name = answer["source_name"]
        self.bytes = answer["bytes"]
        self.seconds = answer["seconds"]
        self.items = values

    def __repr__(self):
        return f"Restored(step={self.step}, from {self.source_name})"


class Session:
    """One at a time for a job and rank in a process; calls come from any thread, one at a time."""

    def __init__(self, options, *, raise_on_error=False, allow_pickle=True, debug=False):
        options = _launch.complete(options)
        if os.environ.get("LIBCKPT_DAEMON_PATH") is None and _programs.daemon_path():
            options.setdefault("daemon_path", _programs.daemon_path())
        options.setdefault("blob_capacity", 4 * BLOB_CAPACITY_MIN)
        self._key = (options["job"], options.get("rank", 0))
        other = _jobs_here.get(self._key)
        if other is not None and not other.is_closed:
            raise errors.InvalidArgument(
                f"job {self._key[0]}: this process has a session of it already: close that one first"
            )
        self.job, self.dir = options["job"], options.get("dir")
        self.rank, self.world_size = options.get("rank", 0), options.get("world_size", 1)
        self._interval = options.get("save_mem_interval", 1)
        self._raise = raise_on_error
        self._allow_pickle = allow_pickle
        self._debug = debug
        self._process = os.getpid()
        self._client = _core.Client(options)
        self._buffers = _tensors.Buffers()
        self._optimizers = []
        self._hooks = []
        self._registered = None
        self._held = ()  # Keeps the tensors of the running capture alive.
        self._sums = {}
        self._told_at = float("-inf")
        self._failed = 0
        self._last_error = ""
        self._must_confirm = None
        _jobs_here[self._key] = self
        _sessions.add(self)

    # --- saving ---

    def guard(self, *optimizers):
        """From now on the optimizers' parameters and state may be copied after a save returned.

        Each `optimizer.step()` waits for what is left first. Returns the session.
        """
        for optimizer in optimizers:
            self._optimizers.append(_tensors.weak(optimizer))
            session = weakref.ref(self)

            def before_step(*_, session=session):
                alive = session()
                if alive is not None:
                    alive.finish_capture()

            self._hooks.append(optimizer.register_step_pre_hook(before_step))
        return self

    def save_checkpoint_if_needed(self, step, items):
        """Captures the step if it is due by `save_mem_interval`. Returns a Ticket."""
        if type(self._interval) is int and self._interval > 0 and step % self._interval:
            return Ticket(self, step, "not_due", 0.0)
        return self._save(step, items, always=False)

    def save(self, step, items):
        """The same, due or not."""
        return self._save(step, items, always=True)

    def finish_capture(self):
        """When it returns, the running capture has left the tensors; `guard` calls it by itself."""
        if self._is_out_of_reach():
            return
        try:
            if self._sums:
                self._check_sums()
            self._client.guard(self._stream)
        except errors.CheckpointError as error:
            self._tell(error)

    def _save(self, step, items, always):
        began = time.perf_counter()
        if self._is_out_of_reach():
            return Ticket(self, step, "skipped_unavailable", 0.0)
        try:
            self._check_open()
            outcome = self._capture(step, items, always)
            self._confirm(step)
        except errors.CheckpointError as error:
            self._failed += 1
            self._tell(error)
            if self._raise:
                raise
            outcome = "failed"
        return Ticket(self, step, outcome, time.perf_counter() - began)

    def _capture(self, step, items, always):
        structure, tensors = _items.take_all(items, self._allow_pickle)
        # What a capture still reads must stay: also when the next one registers other tensors.
        self._client.guard(self._stream)
        views = self._views(tensors)
        self._register(views)
        self._client.set_blob(STRUCTURE, structure.encode())
        self._stream = _tensors.current_stream(views.values())
        outcome = self._client.save(step, self._stream, always)
        if outcome == "started":
            self._held = tuple(views.values())
            self._sums = self._sums_of(views) if self._debug else {}
        return outcome

    _stream = 0

    def _views(self, tensors):
        self._buffers.keep_only(tensors)
        return {name: self._buffers.view(name, tensor) for name, tensor in tensors.items()}

    def _register(self, views):
        guarded = _tensors.guarded_addresses(self._optimizers) if self._optimizers else ()
        wanted = [
            (name, v.address, v.type, v.shape, v.gpu, v.address in guarded and not v.is_buffered)
            for name, v in views.items()
        ]
        if wanted == self._registered:
            return
        self._registered = None
        self._client.update(wanted, [])
        self._registered = wanted

    def _confirm(self, step):
        """Training got on after a restore: the step it began with is not suspect."""
        if self._must_confirm is not None and step > self._must_confirm:
            self._client.restored_ok(self._must_confirm)
            self._must_confirm = None

    # --- the debug mode ---

    def _sums_of(self, views):
        return {name: _checksum(view.kept) for name, view in views.items() if view.gpu < 0}

    def _check_sums(self):
        sums, self._sums = self._sums, {}
        guarded = {name for name, *_, is_guarded in self._registered or () if is_guarded}
        views = dict(zip((name for name, *_ in self._registered or ()), self._held, strict=False))
        for name, before in sums.items():
            if name in guarded and _checksum(views[name].kept) != before:
                logger.error(
                    'libckpt: tensor "%s" changed while it was captured, before the guarded '
                    "optimizer's step: the capture may mix two steps",
                    name,
                )

    # --- restoring ---

    def prepare(self, items):
        """Makes room for `items` now, so that the first save need not wait."""
        self._check_open()
        structure, tensors = _items.take_all(items, self._allow_pickle)
        views = self._views(tensors)
        self._reserve(views, self._expected_bytes())
        self._held = tuple(views.values())

    def restore(self, into=None, step=None, strict=True):
        """The newest step that all ranks can have, or `step`, into the items of `into`.

        Modules and tensors are filled where they are; what has `load_state_dict` gets its state;
        dictionaries are updated. `Restored.items` has all items as plain values. With strict, names
        and shapes must be those of `into`; without, what fits is taken.
        Raises NotFound when there is nothing: train from the beginning.
        """
        self._check_open()
        into = into or {}
        structure, here = _items.take_all(into, self._allow_pickle)
        in_place = _tensors_in_place(into, here)
        loaded, fitting = {}, {}

        def choose(at, stored):
            loaded.clear()
            fitting.clear()
            if strict and into:
                _compare(at, stored, in_place)
            chosen = []
            for name, type_name, shape, alias in stored:
                if "//" in name or name == ROOM:
                    continue
                if alias:
                    continue
                view = _view_in_place(in_place.get(name), type_name, shape)
                if view is None:
                    loaded[name] = _bytes_for(type_name, shape)
                    address = loaded[name].ctypes.data if loaded[name].nbytes else 0
                    chosen.append((name, address, type_name, shape, -1, False))
                else:
                    fitting[name] = view.owner
                    chosen.append((name, view.address, view.type, view.shape, view.gpu, False))
            loaded.update({n: a for n, _, _, a in stored if a})  # Tied: to whose bytes.
            return chosen

        self._reserve(self._views(here), self._stored_bytes())
        answer = self._client.restore(step, choose)
        self._registered = None
        content = self._client.blob(STRUCTURE)
        if content is None:
            raise errors.Corruption(f"step {answer['step']}: it does not tell what its tensors are")
        nodes = json.loads(content)
        tensors = _assemble(nodes, loaded, fitting)
        giver = _items.Giver(tensors, self._allow_pickle)
        values = {name: giver.give(node) for name, node in nodes.items()}
        _load(into, values, strict)
        self._must_confirm = answer["step"]
        return Restored(answer, values)

    def restore_or(self, into, default=None, strict=True):
        """The step that was restored into the items, or `default` when there is none."""
        try:
            return self.restore(into, strict=strict).step
        except errors.NotFound:
            return default

    @property
    def latest(self):
        """The newest committed step of this session, or None."""
        return self.status()["committed"]

    def _reserve(self, views, room):
        """Registers what is there, and makes Slots that also hold what is to come."""
        self._register(views)
        known = sum(_bytes_of(view) for view in views.values())
        if room > known:
            # Only its size counts: nobody reads or writes the memory.
            placeholder = _untouched(room - known)
            self._client.update(
                [*self._registered, (ROOM, placeholder.address, "U8", (room - known,), -1, False)], []
            )
            try:
                self._client.prepare()
            finally:
                self._client.update(self._registered, [])
                placeholder.close()
            return
        self._client.prepare()

    def _expected_bytes(self):
        return 0 if not self._optimizers else _tensors.expected_bytes(self._optimizers, self._held)

    def _stored_bytes(self):
        """What the newest checkpoint of the directory needs, so that it finds room here."""
        from libckpt import _storage

        shard = _storage.newest_shard(self.dir, self.rank) if self.dir else None
        return shard["slot_bytes"] if shard else 0

    # --- the rest ---

    def wait(self, step, level, deadline=DEADLINE):
        """Waits until the step, or a newer one, is "captured", "replicated", "committed", "durable"."""
        self._check_open()
        self._client.guard(self._stream)
        self._client.wait(step, level, deadline)

    def flush(self, deadline=DEADLINE):
        """Waits until the newest committed step is on storage; only with a directory."""
        committed = self.latest
        if self.dir and committed is not None:
            self.wait(committed, "durable", deadline)

    def status(self):
        """What `ckpt status` counts for this session: levels, saves, skips, failures."""
        if self._is_out_of_reach() or self.is_closed:
            return dict.fromkeys(LEVELS) | {"failed": self._failed, "last_error": self._last_error}
        status = self._client.stats()
        status["job"], status["rank"], status["dir"] = self.job, self.rank, self.dir
        status["failed"] = max(status["failed"], self._failed)
        status["last_error"] = status["last_error"] or self._last_error
        return status

    def close(self, deadline=DEADLINE):
        """Flushes the newest committed step and frees the job's memory. Idempotent."""
        if self.is_closed or self._is_out_of_reach():
            return
        client = self._let_go()
        client.close(deadline)

    def abandon(self):
        """Lets go without closing, as a death would: the daemon keeps what it holds."""
        if not self.is_closed and not self._is_out_of_reach():
            self._let_go().drop()

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

    def _let_go(self):
        for hook in self._hooks:
            hook.remove()
        client, self._client = self._client, None
        with contextlib.suppress(errors.CheckpointError):
            client.guard(self._stream)
        self._held, self._registered, self._sums = (), None, {}
        if _jobs_here.get(self._key) is self:
            del _jobs_here[self._key]
        return client

    def _check_open(self):
        if self.is_closed:
            raise errors.InvalidArgument(f"job {self.job}: the session was closed")

    def _is_out_of_reach(self):
        """A forked worker has a copy of the session, which is not its own."""
        return os.getpid() != self._process

    def _tell(self, error):
        self._last_error = str(error)
        now = time.monotonic()
        if now - self._told_at >= FAILURES_TOLD_EVERY:
            self._told_at = now
            logger.error("libckpt: %s; training goes on, later failures are counted", error)


def _checksum(tensor):
    if _tensors.is_torch(tensor):
        import torch

        tensor = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(tensor.tobytes() if tensor.ndim == 0 else tensor)


def _bytes_of(view):
    size = _type_bytes(view.type)
    for dimension in view.shape:
        size *= dimension
    return size


def _type_bytes(type_name):
    if type_name == "BOOL" or type_name.startswith("F8"):
        return 1
    return {"BF16": 2, "C64": 8}.get(type_name) or int(type_name[1:]) // 8


def _bytes_for(type_name, shape):
    import numpy

    size = _type_bytes(type_name)
    for dimension in shape:
        size *= dimension
    return numpy.empty(size, dtype=numpy.uint8)


class _untouched:
    """Addresses without memory behind them."""

    def __init__(self, size):
        import ctypes
        import mmap

        self._memory = mmap.mmap(-1, size)
        self._view = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)

    def close(self):
        del self._view
        self._memory.close()


def _tensors_in_place(into, here):
    """Of the tensors by name, those that a restore may write where they are."""
    in_place = {}
    for name, item in into.items():
        if _items.is_module(item) or _tensors.is_tensor(item):
            prefix = f"{name}."
            in_place.update({n: t for n, t in here.items() if n == name or n.startswith(prefix)})
    return in_place


def _view_in_place(tensor, type_name, shape):
    if tensor is None:
        return None
    if _tensors.is_torch(tensor):
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            return None
    elif not (tensor.flags.c_contiguous and tensor.flags.writeable):
        return None
    view = _tensors.Buffers().view("", tensor)
    return view if (view.type, tuple(view.shape)) == (type_name, tuple(shape)) else None


def _compare(at, stored, in_place):
    there = {name: (type_name, tuple(shape)) for name, type_name, shape, _ in stored}
    missing = sorted(set(in_place) - set(there))
    if missing:
        raise errors.InvalidArgument(
            f"restore step {at}: {len(missing)} tensor(s) of this trainer are not in it: "
            f"{', '.join(missing[:5])}; with strict=False they stay as they are"
        )
    for name, tensor in in_place.items():
        view = _tensors.Buffers().view("", tensor)
        if (view.type, tuple(view.shape)) != there[name]:
            raise errors.InvalidArgument(
                f'restore step {at}: tensor "{name}" is {view.type} {list(view.shape)} here and '
                f"{there[name][0]} {list(there[name][1])} there"
            )


def _assemble(nodes, loaded, fitting):
    """By name, the tensors that the structure asks for."""
    found = {}

    def walk(node):
        if isinstance(node, dict) and "t" in node:
            name = node["t"]
            source = name
            if isinstance(loaded.get(source), str):
                source = loaded[source]
            if source in fitting:
                found[name] = fitting[source]
            elif source in loaded:
                found[name] = _dress(loaded[source], node)
        elif isinstance(node, dict):
            for part in node.values():
                walk(part)
        elif isinstance(node, list):
            for part in node:
                walk(part)

    walk(nodes)
    return found


def _dress(content, node):
    """Bytes as the tensor that they were; the memory is shared."""
    if "torch" in node:
        import torch

        kind = getattr(torch, node["torch"])
        return torch.from_numpy(content).view(kind).reshape(node["shape"])
    import numpy

    return content.view(numpy.dtype(node["numpy"])).reshape(node["shape"])


def _load(into, values, strict):
    for name, item in into.items():
        if name not in values:
            if strict:
                raise errors.InvalidArgument(f'restore: item "{name}" was not saved')
            continue
        value = values[name]
        if _items.is_module(item):
            _load_module(name, item, value, strict)
        elif _items.can_load(item):
            item.load_state_dict(value)
        elif isinstance(item, dict):
            item.clear()
            item.update(value)
        elif isinstance(item, list):
            item[:] = value


def _load_module(name, module, value, strict):
    import torch

    with torch.no_grad():
        # Most of it is there already: what is the same memory is not copied onto itself.
        state = module.state_dict()
        rest = {
            key: tensor
            for key, tensor in value.items()
            if not (_tensors.is_torch(tensor) and key in state and tensor is state[key])
            and not (
                _tensors.is_torch(tensor)
                and key in state
                and _tensors.is_torch(state[key])
                and tensor.data_ptr() == state[key].data_ptr()
            )
        }
        if not strict:
            rest = {
                key: tensor
                for key, tensor in rest.items()
                if key in state and getattr(tensor, "shape", None) == getattr(state[key], "shape", None)
            }
        if rest or strict:
            answer = module.load_state_dict(rest, strict=False)
            if strict and answer.unexpected_keys:
                raise errors.InvalidArgument(
                    f'restore: module "{name}" has no {", ".join(answer.unexpected_keys[:5])}'
                )


@atexit.register
def _leave():
    # As a death would: the daemon keeps, and goes on to flush, what it holds.
    for session in list(_sessions):
        with contextlib.suppress(Exception):
            session.abandon()
