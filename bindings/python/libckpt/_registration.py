"""Registration: which tensors and members the library copies at the next capture.

It tells the library only of what changed, keeps alive what a running capture reads, and makes room
for what is known to come.
"""

import contextlib
import ctypes
import json
import mmap
import os
import weakref

from libckpt import _core, _resizing, _tensors, _views, errors

STRUCTURE = "libckpt.items"  # The blob that tells what the tensors are parts of.
ROOM = "libckpt.room"  # Stands for tensors that will come; never captured.
BLOB_CAPACITY = 4 << 20  # For the structure, with what was pickled in it.


class Registration:
    def __init__(self, options):
        self.client = _core.Client(options)
        self.optimizers = []  # Weak references to those that are guarded.
        self.stream = 0
        self._process = os.getpid()
        self._views = _views.Views()
        self._gpu = (None, None)  # Some views, and the first GPU of them.
        self._registered = None  # As the library was told.
        self._as_registered = ({}, {})  # The views, and guarded ranges, that this was told from.
        self._held = ()  # Keeps the tensors of the running capture alive.

    def guard(self, optimizer):
        self.optimizers.append(weakref.ref(optimizer))
        _resizing.watch(self)

    def finish(self):
        """When it returns, the running capture has left the tensors."""
        if os.getpid() == self._process:
            with contextlib.suppress(errors.CheckpointError):  # The guard tells of it.
                self.client.guard(self.stream)

    def capture(self, step, taken, always):
        """(outcome, views by name). `taken` is what items.take_all answered."""
        structure, tensors, members = taken
        # What a capture still reads must stay: also when the next one registers other tensors.
        self.client.guard(self.stream)
        views = self.view(tensors)
        self.register(views, members)
        self._set_structure(structure)
        self.stream = _tensors.current_stream(self._first_gpu(views))
        outcome = self.client.save(step, self.stream, always)
        self._held = (views, members)
        return outcome, views

    def _set_structure(self, structure):
        try:
            self.client.set_blob(STRUCTURE, structure.encode())
        except errors.Exhausted as error:
            parts = json.loads(structure)
            sizes = {name: len(json.dumps(part)) for name, part in parts.items()}
            name = max(sizes, key=sizes.get)
            raise errors.Exhausted(
                f'the plain data of the items is too large, that of item "{name}" the largest with '
                f"{sizes[name]} bytes: save long lists and what holds tensors as tensors, arrays, "
                f"lists or dictionaries, or give libckpt.init a larger blob_capacity ({error})"
            ) from error

    def view(self, tensors):
        return self._views.of(tensors)

    def _first_gpu(self, views):
        if self._gpu[0] is not views:
            self._gpu = (views, _tensors.first_gpu(views.values()))
        return self._gpu[1]

    def register(self, views, members):
        """Makes what is registered exactly this."""
        guarded = _tensors.guarded_ranges(self.optimizers)
        if not members and self._is_registered(views, guarded):
            return
        wanted = (
            [_told(name, view, guarded) for name, view in views.items()],
            [
                (name, [_told(entry, view, guarded) for entry, view in entries.items()])
                for name, entries in members.items()
            ],
        )
        if wanted != self._registered:
            self._registered = None
            self.client.update(*wanted)
            self._registered = wanted
        self._as_registered = (views, guarded)

    def _is_registered(self, views, guarded):
        """Whether these very views, and no members, are what is registered; the usual case."""
        if self._registered is None or self._registered[1]:
            return False
        known, guarded_then = self._as_registered
        return views is known and guarded == guarded_then

    def forget(self):
        """After a restore the library may know other tensors than before."""
        self._registered = None

    def guarded_names(self):
        return {name for name, *_, is_guarded in (self._registered or ((),))[0] if is_guarded}

    def reserve(self, views, members, room):
        """Registers what is there, and makes Slots that also hold `room` bytes if that is more."""
        self.client.guard(self.stream)  # What is held for the running capture is let go.
        self.register(views, members)
        self._held = (views, members)
        known = sum(view.nbytes for view in views.values())
        if room <= known:
            self.client.prepare()
            return
        # Only its size counts: nobody reads or writes the memory.
        placeholder = _Untouched(room - known)
        stand_in = (ROOM, placeholder.address, "U8", (room - known,), -1, False)
        tensors, archives = self._registered
        self.client.update([*tensors, stand_in], archives)
        try:
            self.client.prepare()
        finally:
            self.client.update(tensors, archives)
            placeholder.close()

    def expected_bytes(self, views):
        return _tensors.expected_bytes(self.optimizers, views.values()) if self.optimizers else 0

    def structure(self):
        """What the restored step's tensors are parts of; none: it does not tell."""
        content = self.client.blob(STRUCTURE)
        return None if content is None else json.loads(content)

    def let_go(self):
        self._held, self._registered, self._as_registered = (), None, ({}, {})
        self._views, self._gpu = _views.Views(), (None, None)


def _told(name, view, guarded):
    is_guarded = not view.is_buffered and 0 < view.nbytes <= guarded.get(view.address, 0)
    return (name, view.address, view.type, view.shape, view.gpu, is_guarded)


class _Untouched:
    """Addresses without memory behind them."""

    def __init__(self, size):
        self._memory = mmap.mmap(-1, size)
        self._view = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)

    def close(self):
        del self._view
        self._memory.close()
