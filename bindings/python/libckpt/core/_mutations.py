"""Mutations: a capture is dropped when one of its tensors was written while it was copied.

With a guard, tensors are read after the save returned, until the next step of an optimizer. Other
code may write them meanwhile, without asking: a forward pass that renormalizes, a load_state_dict.
PyTorch counts the writes to each tensor. The counts are taken before a save, and compared when the
training thread calls next: in a guard, a save, a wait, or at the end of the session. Until then the
daemon does not learn of the capture. A tensor that was written once is copied before a save returns
from then on.

A write is counted when it ends. So only a thread that may write judges, or any thread once those
have ended: what such a thread had begun is over when it calls.
"""

import logging
import threading
import weakref

from libckpt.core import _tensors

logger = logging.getLogger("libckpt")

NAMES_LISTED = 3
UNJUDGED = (
    "the capture is judged by the thread that trains, in its next step, save or wait; call "
    "finish_capture() if no other thread trains now"
)


class _Capture:
    def __init__(self, step, tensors, twins, stepper, is_debugged):
        self.step = step
        self.is_started = False
        self._saver, self._stepper = threading.current_thread(), stepper
        self._tensors = tensors
        self._counted = [*tensors.items(), *twins.items()]
        self._counts = self._counts_now()
        # PyTorch does not count what is written through `.data`, numpy or a library of its own.
        self._sums = _sums_of(tensors) if is_debugged else {}

    def may_be_judged_here(self, is_over=False):
        """Whether no other thread can be in the middle of a write. `is_over`: none trains now."""
        here = threading.current_thread()
        writers = [self._saver] if is_over else [self._saver, self._stepper or here]
        return all(writer is here or not writer.is_alive() for writer in writers)

    def written(self):
        """The names of the tensors that were written."""
        counts = self._counts_now()
        changed = self.changed_bytes()
        if counts == self._counts:
            return changed
        each = zip(self._counted, self._counts, counts, strict=True)
        written = [name for (name, _), before, now in each if before != now]
        return list(dict.fromkeys([*written, *changed]))

    def _counts_now(self):
        return _tensors.write_counts([tensor for _, tensor in self._counted])

    def changed_bytes(self):
        """The names of the tensors that have other bytes now; only in the debug mode."""
        if not self._sums:
            return []
        now = _sums_of(self._tensors)
        return [name for name, before in self._sums.items() if now[name] != before]


class _Both:
    """The memory of two captures: of one that may not have ended, and of one that begins."""

    def __init__(self, *parts):
        self._parts = [part for part in parts if part is not None]

    def has(self, address):
        return any(part.has(address) for part in self._parts)


class Twins:
    """The optimizer's own tensors where others are saved, such as `parameter.data`: a write to the
    one is not counted by the other."""

    def __init__(self):
        self._left, self._own = (), {}  # For those that are left: by name, weak references.

    def of(self, left, tensors, guard):
        """By name; `left`: name, address, and whether in a member, of each that is left."""
        if self._left is not left:
            owned = guard.tensors() if left else {}
            self._left, self._own = left, {}
            for name, address, is_in_member in left:
                own = None if is_in_member else owned.get(address)
                if own is not None and own is not tensors[name]:
                    self._own[name] = weakref.ref(own)
        twins = {name: own() for name, own in self._own.items()}
        return {name: own for name, own in twins.items() if own is not None}


class Mutations:
    """Judges the captures of one registration."""

    def __init__(self, client, is_debugged=False):
        self.names = set()  # Tensors that were ever written during a capture.
        self.memory = None  # KeptMemory: what a capture may still read.
        self._memory_before = self._memory_next = None
        self.addresses = threading.RLock()  # Held where a save reads them, or storages move.
        self._client = client
        self._is_debugged = is_debugged
        self._unchecked = None  # The newest capture whose bytes the debug mode is to compare.
        self._holds = False
        self._capture = None
        self._step = self.newest_started = None  # A save's.
        self._stepper = None  # The thread that called an optimizer's step.

    def before_step(self):
        self._stepper = threading.current_thread()

    def begin(self, step, tensors, twins, memory):
        """Call before the save of the step. It leaves `tensors` for later, and reads `memory`.
        `twins`: other tensors in the same memory, which count writes of their own."""
        self._memory_before, self._memory_next, self._step = self.memory, memory, step
        self.memory = _Both(self._memory_before, memory)
        holds = bool(tensors)
        self._capture = None
        if holds:
            self._capture = _Capture(step, tensors, twins, self._stepper, self._is_debugged)
        if self._holds != holds:
            self._client.hold(holds)
            self._holds = holds

    def began(self, is_started):
        """Call after the save."""
        # If it started, the copies before have ended. Another thread may have cleared `memory`
        # meanwhile: a wait does that once the capture before has ended.
        self.memory = self._memory_next if is_started else self._memory_before
        self._memory_before = self._memory_next = None
        if not is_started:
            self._capture = None
            return
        self.newest_started = self._step
        if self._capture is not None:
            self._capture.is_started = True
            self._unchecked = self._capture if self._is_debugged else None

    def may_read(self, address):
        """Whether the running capture may still read the storage that begins there."""
        memory = self.memory  # Another thread may let go of it meanwhile.
        return memory is not None and memory.has(address)

    def running(self):
        """The capture that has begun and is not judged."""
        capture = self._capture
        return capture if capture is not None and capture.is_started else None

    def judge(self, capture):
        """Call when the copies are over, or ordered before all that comes."""
        names = capture.written()
        self.names.update(names)
        self._client.settle(capture.step, _problem_with(names))
        if self._capture is capture:
            self._capture = None

    def judge_copied(self):
        """Judges the capture if its last byte was copied and this thread may judge it."""
        capture = self.running()
        if capture is not None and self._client.copied() == capture.step:
            if capture.may_be_judged_here():
                self.judge(capture)

    def log_changes(self):
        """Call before the tensors may change in order; for the debug mode."""
        capture, self._unchecked = self._unchecked, None
        for name in capture.changed_bytes() if capture is not None else ():
            logger.error(
                'libckpt: tensor "%s" changed between a save and the guarded optimizer\'s step: a '
                "capture that had not left it is dropped; call session.finish_capture() before "
                "it changes",
                name,
            )

    def stop(self):
        """Call once nothing waits for copies any more."""
        self._capture = self._unchecked = self.memory = None


def _sums_of(tensors):
    """By name, over the bytes of those tensors that lie on the host."""
    on_host = {name: t for name, t in tensors.items() if _tensors.kind_of(t).gpu_of(t) < 0}
    return {name: _tensors.kind_of(t).checksum(t) for name, t in on_host.items()}


def _problem_with(names):
    if not names:
        return ""
    listed = ", ".join(f'"{name}"' for name in names[:NAMES_LISTED])
    more = f" and {len(names) - NAMES_LISTED} more" if len(names) > NAMES_LISTED else ""
    return (
        f"{listed}{more} changed while they were copied, and not in an optimizer's step: the "
        "capture is dropped, and from now on they are copied before a save returns; call "
        "finish_capture() before such a change to have them copied in the background"
    )
