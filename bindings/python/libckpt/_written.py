"""Written: no capture is told whose tensors were written while it was copied.

With a guard, tensors are read after the save returned, until the next step of an optimizer. What
else writes them meanwhile, a forward pass that renormalizes or a load_state_dict, asks nobody. But
PyTorch counts the writes to each tensor: the counts are taken before a save and compared once the
last byte was copied, or, if that is earlier, when a guard has ordered what comes after the copies.
Only then is the capture told to the daemon; one whose tensors were written is dropped, and they are
copied before a save returns from then on.

A write is counted when it ends. What a training thread had begun by the end of the copies has ended
once that thread itself looks, in a guard, or once it was between two instructions since then.
"""

import contextlib
import threading
import time
import weakref

from libckpt import _core, _debug, errors

NAMES_TOLD = 3
PAUSE, PAUSE_MAX = 0.0002, 0.02  # Seconds between two looks at what the training threads do.


class _Capture:
    def __init__(self, step, tensors, threads, is_debugged):
        self.step = step
        self.threads = threads  # That may write them.
        self.is_started = False
        self.problem = None  # None: nobody has looked yet; "": it is whole.
        self._tensors = tensors
        self.is_of_tensors = bool(tensors)
        self._counts = [tensor._version for tensor in tensors.values()]
        self._sums = _debug.sums_of(tensors) if is_debugged else {}

    def look(self):
        """The names of those that were written."""
        counts = [tensor._version for tensor in self._tensors.values()]
        changed = self.changed_bytes()
        if counts == self._counts:
            return changed
        pairs = zip(self._tensors, self._counts, counts, strict=True)
        return [name for name, before, now in pairs if before != now or name in changed]

    def changed_bytes(self):
        """The names of those that have other bytes now; only in the debug mode."""
        if not self._sums:
            return []
        now = _debug.sums_of(self._tensors)
        return [name for name, before in self._sums.items() if now[name] != before]


class Written:
    """Of the captures of one registration."""

    def __init__(self, client, is_debugged=False):
        self.names = set()  # Of tensors that were written in mid-capture, ever.
        self.held = {}  # By step, the memory that a capture may still read.
        self._held_before = None
        self._client = client
        self._is_debugged = is_debugged
        self._unchecked = None  # The newest capture whose bytes the debug mode is to compare.
        self._holds = False
        self._capture = None
        self._is_judging = False  # On a native thread: `threading` knows nothing of it.
        self._stepper = None  # The thread that called an optimizer's step.

    def before_step(self):
        self._stepper = threading.get_ident()

    def begin(self, step, tensors, memory):
        """Before the save of the step, which leaves these tensors for later; what it reads behind
        the trainer has this memory."""
        waits = bool(tensors or memory)
        self._held_before = self.held.get(step)  # Of a step that is saved again after a restore.
        if memory:
            self.held[step] = (memory, self._held_before)
        threads = {threading.get_ident(), self._stepper or threading.get_ident()}
        self._capture = (
            _Capture(step, tensors, threads, self._is_debugged) if waits else None
        )
        if self._holds != waits:
            self._client.hold(waits)
            self._holds = waits
        if waits and not self._is_judging:
            self._client.start_judging(_judge_of(weakref.ref(self)))
            self._is_judging = True

    def began(self, step, is_started):
        """After it."""
        if is_started:  # The copies before have ended.
            for other in [other for other in self.held if other != step]:
                self.held.pop(other, None)
        else:
            self.held.pop(step, None)
            if self._held_before is not None:
                self.held[step] = self._held_before
        self._held_before = None
        if not is_started:
            self._capture = None
        elif self._capture is not None:
            self._capture.is_started = True
            if self._is_debugged:
                self._unchecked = self._capture

    def running(self):
        """The capture that was begun and is not settled."""
        capture = self._capture
        return capture if capture is not None and capture.is_started else None

    def settle(self, capture):
        """What was queued, or done, since the capture does not count: its copies are in order."""
        if capture.problem is None:
            names = capture.look()
            # Whoever looked first is right: after that the guarded step goes on.
            if capture.problem is None:
                self.names.update(names)
                capture.problem = _told(names)
        self._client.settle(capture.step, capture.problem)
        if self._capture is capture:
            self._capture = None

    def settle_copied(self, step):
        """When the last byte was copied; on a thread of ours."""
        self.held.pop(step, None)
        capture = self._capture
        if capture is None or capture.step != step:
            return
        if not capture.is_of_tensors:  # Nothing that could have been written.
            self.settle(capture)
            return
        progress, pause = _Progress(capture.threads), PAUSE
        while self._capture is capture:
            if progress.is_made():
                self.settle(capture)
                return
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX)

    def log_changes(self):
        """In the debug mode, before what may change the tensors in order."""
        capture, self._unchecked = self._unchecked, None
        if capture is not None:
            _debug.log_changes(capture.changed_bytes())

    def stop(self):
        """Once nothing waits for copies any more."""
        self._capture = self._unchecked = None
        self.held.clear()
        self._client.stop_judging()


def _judge_of(written):
    def judge(step):
        alive = written()
        if alive is not None:
            with contextlib.suppress(errors.CheckpointError):  # It was closed meanwhile.
                alive.settle_copied(step)

    return judge


class _Progress:
    """Whether threads have got on since it was made: what they had begun by then has ended."""

    def __init__(self, threads):
        main = threading.main_thread().ident
        # The main thread is asked. For others Python must make objects of the frames that run, in
        # which some of its versions had errors.
        self._waits_for_main = main in threads
        self._is_asked = False
        self._passes = _core.main_thread_passes()
        self._others = [thread for thread in threads if thread != main]
        self._then = self._look()

    def is_made(self):
        if self._waits_for_main:
            self._is_asked = self._is_asked or _core.ask_main_thread()
            if _core.main_thread_passes() == self._passes:
                return False
            self._waits_for_main = False
        pairs = zip(self._then, self._look(), strict=True)
        return all(now is None or now != then for then, now in pairs)

    def _look(self):
        return _core.instructions(self._others) if self._others else []


def _told(names):
    if not names:
        return ""
    listed = ", ".join(f'"{name}"' for name in names[:NAMES_TOLD])
    more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return (
        f"{listed}{more} changed while they were copied, and not in an optimizer's step: the "
        "capture is dropped, and from now on they are copied before a save returns; call "
        "finish_capture() before such a change to have them copied in the background"
    )
