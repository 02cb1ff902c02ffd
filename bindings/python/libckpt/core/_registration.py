"""Registration: which tensors and members the library copies at the next capture.

It sends the library only changes, keeps alive what a running capture reads, and makes room for
steps that are known to come.
"""

import contextlib
import ctypes
import mmap
import os

from libckpt import _native, errors
from libckpt.core import _frameworks, _kept_memory, _metrics, _mutations, _structure, _tensors
from libckpt.core import _views

ROOM = "libckpt.room"  # Stands for tensors that will come; never captured.


class Registration:
    def __init__(self, options, is_debugged=False):
        self.client = _native.Client(options)
        self._guard = None  # An adapter's, of the optimizers that are guarded.
        self.mutations = _mutations.Mutations(self.client, is_debugged)
        self._left_for_later = ()  # Registered tensors: name, address, whether in a member.
        self._twins = _mutations.Twins()
        self._stream = None  # The newest save was ordered by it; None: no GPU.
        self._captured = []  # The GPUs of the newest capture.
        self.asked = None  # The step that the library was asked to save last.
        self.process = os.getpid()
        self._views = _views.Views()
        self._gpus = (None, [])  # Some views, and the GPUs that these and the members lie on.
        self._registered = None  # As the library has it.
        self._places = {}  # By name, where arrays lie in larger tensors.
        self._expected = set()  # The names among these that the next save is to have.
        self._constants = set()  # Names of those that nobody writes while they are held.
        self._made_from = ({}, {}, 0)  # The views, guarded ranges, and number of written names.
        self._structure = _structure.Structure(self.client)
        self._left = None  # An event: when it has completed, a GPU's copies of those have ended.

    @property
    def optimizers(self):
        """Weak references to those that are guarded."""
        return self._guard.optimizers if self._guard else []

    def guard(self, optimizer, before_step):
        """`before_step(optimizer)` is called before the step of any optimizer."""
        if self._guard is None:
            self._guard = _frameworks.optimizer_adapter(optimizer).Guard(self, before_step)
        self._guard.add(optimizer)

    def before_step(self, optimizer):
        """Before the update of any optimizer is queued."""
        if _frameworks.is_recording_graph():
            self._guard.leave_to_graph(optimizer)
        self.mutations.before_step()
        self.finish_here()

    def finish_here(self, judges=True):
        """Work that is queued from now on may change the tensors, on the streams that are current
        now: the update need not be where the save was."""
        running = self.mutations.running()
        streams = _frameworks.current_streams(self._captured)
        if self._stream is not None:
            streams.append(self._stream)
        for handle in dict.fromkeys(stream.cuda_stream for stream in streams) or [0]:
            self.client.guard(handle)
        if running is not None and judges:
            self.mutations.judge(running)
        self._release_memory()
        self.mutations.log_changes()

    def finish_if_judged_here(self, is_over=False):
        """The same, where this thread may judge the running capture. Returns whether it may.
        `is_over`: no thread trains any more."""
        if may_judge := self._may_judge(is_over):
            self.finish_here()
        return may_judge

    def _may_judge(self, is_over=False):
        running = self.mutations.running()
        return running is None or running.may_be_judged_here(is_over)

    def _release_memory(self):
        """Call after a guard. It waited for copies of the host; a GPU waits for its own copies, and
        its allocator, which knows nothing of them, must not give their memory to others."""
        mutations = self.mutations
        if not self._captured:
            mutations.memory = None
        elif mutations.memory is None or _frameworks.is_recording_graph():
            pass  # An event would go into the graph.
        elif self._left is None:
            self._left = self._stream.record_event()
        elif self._left.query():
            mutations.memory = None

    def finish(self):
        """When it returns, the running capture has left the tensors."""
        if os.getpid() == self.process:
            with contextlib.suppress(errors.CheckpointError):  # The guard reports it.
                self.finish_here(judges=self._may_judge())

    def finish_reading(self, addresses):
        """The same, if the capture may read a storage that begins at one of these."""
        if any(map(self.mutations.may_read, addresses)):
            self.finish()

    def capture(self, step, flattened, arrays, always, wait=0, metrics=None):
        """The outcome. `flattened` is what items.flatten answered."""
        structure, tensors, members = flattened
        if arrays:
            tensors = tensors | arrays.tensors()
        arrays.warn_of_lost(step, self._expected)
        self.set_places(arrays)
        # Memory that a capture still reads must stay: also when the next one registers others.
        self.finish_here(judges=self._may_judge())  # The library drops what is not judged.
        views = self.view(tensors)
        self.register(views, members)
        self._structure.set(structure)
        gpus = self._gpus_of(views, members)
        counted = self._counted(tensors)
        constants = arrays.constants() if self._constants else ()
        memory = _kept_memory.memory_of(tensors, counted, views, members, gpus, constants)
        twins = self._twins.of(self._left_for_later, tensors, self._guard)
        self.mutations.begin(step, counted, twins, memory)
        outcome = "failed"
        try:
            _metrics.give(self.client, step, metrics)
            outcome = self._save(step, gpus, always, wait)
        finally:
            self.mutations.began(outcome == "started")
        if outcome == "started":
            self._captured, self._left = gpus, None
        return outcome

    def _counted(self, tensors):
        """By name, those that are left for later: the tensors by which all writes are counted."""
        # A member has storages, which do not count: the optimizer has their tensors.
        has_members = any(is_in_member for *_, is_in_member in self._left_for_later)
        owned = self._guard.tensors() if has_members else {}
        return {
            name: owned[address] if is_in_member else tensors[name]
            for name, address, is_in_member in self._left_for_later
        }

    def _save(self, step, gpus, always, wait):
        # The library takes one stream, and knows of the default streams of other GPUs.
        first, *others = _frameworks.current_streams(gpus) or [None]
        others = [other for other in others if other.cuda_stream != 0]
        for other in others:
            first.wait_stream(other)
        self._stream = first
        self.asked = step
        outcome = self.client.save(step, first.cuda_stream if first else 0, always, wait)
        for other in others:
            other.wait_stream(first)  # Which waits for what was copied before the call returned.
        return outcome

    def view(self, tensors):
        try:
            return self._views.of(tensors)
        except (RuntimeError, NotImplementedError):
            # A tensor may have changed its kind since the last look: torch's words name no item.
            for name, tensor in tensors.items():
                _tensors.check(name, tensor)
            raise

    def _gpus_of(self, views, members):
        if members:
            entries = (view for entries in members.values() for view in entries.values())
            self._gpus = (None, _gpus_of([*views.values(), *entries]))
        elif self._gpus[0] is not views:
            self._gpus = (views, _gpus_of(views.values()))
        return self._gpus[1]

    def set_places(self, arrays):
        """Sets the places of the arrays that are registered next."""
        places, constants = arrays.places(), set(arrays.constants())
        if places != self._places or constants != self._constants:
            self._made_from = ({}, {}, 0)
        self._places, self._constants, self._expected = places, constants, arrays.expected()

    def register_only(self, arrays):
        """Registers the arrays that a restore is to fill, and no others."""
        self.finish_here()
        self.set_places(arrays)
        # Not as for a save, which may copy a small tensor elsewhere first.
        views = {name: _views.view_of(name, tensor) for name, tensor in arrays.tensors().items()}
        self.register(views, {})

    def register(self, views, members):
        """Makes what is registered exactly this."""
        guarded = self._guard.ranges() if self._guard else {}
        if not members and self._is_registered(views, guarded):
            return
        archives = [
            (name, self._described(entries, f"{name}//", guarded))
            for name, entries in members.items()
        ]
        wanted = (self._described(views, "", guarded), archives)
        if wanted != self._registered:
            self._registered = None
            self.client.update(*wanted)
            self._registered = wanted
            by_prefix = [("", wanted[0]), *((f"{name}//", parts) for name, parts in archives)]
            self._left_for_later = [
                (prefix + name, address, bool(prefix))
                for prefix, parts in by_prefix
                for name, address, _, _, _, is_left, *_ in parts
                if is_left and prefix + name not in self._constants
            ]
        self._made_from = (views, guarded, len(self.mutations.names))

    def _is_registered(self, views, guarded):
        """Whether these very views, and no members, are what is registered; the usual case."""
        if self._registered is None or self._registered[1]:
            return False
        known, *guarded_then = self._made_from  # A dictionary is equal to itself at once.
        return views is known and guarded_then == [guarded, len(self.mutations.names)]

    def _described(self, views, prefix, guarded):
        return [
            (name, view.address, view.type, view.shape, view.gpu,
             self._is_left(prefix + name, view, guarded), *self._more_of(name, view))
            for name, view in views.items()
        ]  # fmt: skip

    def _more_of(self, name, view):
        """Facts that few tensors have: a place in a larger one, and whether it is frozen."""
        place = self._places.get(name)
        if view.is_frozen:
            return place, True
        return () if place is None else (place,)

    def _is_left(self, name, view, guarded):
        if view.is_buffered or name in self._constants:
            return not view.is_buffered and view.nbytes > 0
        return (
            0 < view.nbytes <= guarded.get(view.address, 0)
            and name not in self.mutations.names
            and view.counts_writes
        )

    def forget(self):
        """After a restore the library may know other tensors than before, and those that were made
        for it may be gone."""
        self._registered, self._views = None, _views.Views()

    def guarded_names(self):
        return {tensor[0] for tensor in (self._registered or ((),))[0] if tensor[5]}

    def reserve(self, views, members, room, prepare=None):
        """Registers what is there, and makes Slots that also hold `room` bytes if that is more.

        `prepare`: how it waits for them, if not as the client's `prepare` does.
        """
        prepare = prepare or self.client.prepare
        self.finish_here()
        self.register(views, members)
        self._structure.make_room()
        known = sum(view.nbytes for view in views.values())
        if room <= known:
            prepare()
        else:
            self._prepare_with_room(room - known, prepare)

    def _prepare_with_room(self, room, prepare):
        # Only its size counts: nobody reads or writes the memory, so that it takes none.
        untouched = mmap.mmap(-1, room)
        address = ctypes.addressof(ctypes.c_char.from_buffer(untouched))
        stand_in = (ROOM, address, "U8", (room,), -1, False)
        tensors, archives = self._registered
        self.client.update([*tensors, stand_in], archives)
        try:
            prepare()
        finally:
            self.client.update(tensors, archives)

    def expected_bytes(self, views):
        """The bytes of items with the guarded optimizers once each has made a step."""
        if not self.optimizers:
            return 0
        return sum(view.nbytes for view in views.values()) + state_bytes((), self.optimizers)

    def let_go(self):
        """When the library has let go of them."""
        if self._guard is not None:
            self._guard.remove()
        self.mutations.stop()
        self._left, self._stream, self._captured = None, None, []
        self._registered, self._made_from = None, ({}, {}, 0)
        self._views, self._gpus = _views.Views(), (None, [])


def state_bytes(items, guarded):
    """The bytes of the optimizers' state once each has made a step."""
    return sum(adapter.state_bytes(items, guarded) for adapter in _frameworks.adapters())


def _gpus_of(views):
    return sorted({view.gpu for view in views if view.gpu >= 0})
