"""Files: the checkpoints of one directory, each captured and then put in its place by the daemon.

    DIR/.libckpt/lightning/         the job whose checkpoints hold what was captured
    DIR/.libckpt/lightning-work/    a note for each that is captured and not in its place yet, and
                                    for each file that goes after that
"""

import itertools
import logging
import os
import pathlib
import secrets
import time

from libckpt import errors
from libckpt.adapters.torch._members import TorchMember
from libckpt.core.files import _disk, _leftovers, _publish_queue, _shared_queues, _work

logger = logging.getLogger("libckpt")

_order = itertools.count()
FILE = "file"  # The member of a save, whatever its path: so the next one finds Slots that fit.


class Files:
    """The files of one directory, on the rank that writes."""

    def __init__(self, directory):
        self._directory = pathlib.Path(directory)
        private = self._directory / _work.PRIVATE
        self._steps = private / "lightning"
        self.work = _work.WorkFolders(private / "lightning-work")
        self._job = _publish_queue.job_of("lightning", self._directory.name, self._steps)
        self._queue = None
        self._left = None  # Notes of a killed run, the newest first; None: nobody has looked.
        self._is_there = True  # The save before a removal: without it the older file must stay.
        self.holds_notes = False  # Until memory has the step that is saved.
        self.held = []  # Names and facts of notes.

    def finish(self):
        """Puts in their places the files that a killed run had captured, and removes those that it
        wanted to remove after that. After an OSError it goes on with the next call."""
        if self._queue is None and not _shared_queues.settle_earlier(self._job, self._steps):
            self._left = self._left or []  # The notes are of this run.
            return
        if self._left is None:
            self._left = self.work.noted()
        ends = _leftovers.ends()
        while self._left:
            name, facts = self._left[-1]
            self._finish_one(facts, ends)
            self.work.drop(name)
            self._left.pop()
        if self._queue is None:
            self.work.drop_all()

    def _finish_one(self, facts, ends):
        path = self._directory / facts["name"]
        if facts["is_removed"]:
            if self._is_there and path.is_file():
                path.unlink()
            return
        _, files = _leftovers.await_step(self._steps, facts["step"], ends)
        self._is_there = files is not None
        if self._is_there:
            _disk.place(files[FILE], path)
        else:
            _leftovers.log_dropped(path)

    def save(self, checkpoint, path):
        """Captures it; the file comes later. Raises CheckpointError when that cannot be."""
        with _publish_queue.turn():
            if self._queue is not None and self._queue.session.is_closed:
                self._queue = None
            if self._queue is None or self._left:
                _leftovers.attempt(self._directory, self.finish)
            if self._queue is None:
                self._queue = _shared_queues.opened(
                    self._job, self._steps, rank=0, world_size=1,
                    advice="save_top_k of ModelCheckpoint says how many stay",
                )  # fmt: skip
            _publish_queue.settle_to(self._queue, 1)  # Each that was asked for is to come.
            step = self._queue.capture({FILE: TorchMember(checkpoint, as_it_is=True)})
            self._queue.post(step, _Place(self.work, self._note(step, path, False), path))

    def _note(self, step, path, is_removed):
        """Its name."""
        # Notes of one instant are read in this order, too.
        name = f"{step:09}-{next(_order):06}-{secrets.token_hex(8)}"
        self.held.append((name, {"step": step, "name": path.name, "is_removed": is_removed}))
        if not self.holds_notes:
            self._write_notes()
        return name

    def release_notes(self):
        """Writes what was held: the files come now, whatever becomes of this process."""
        if self.held:
            with _publish_queue.turn():
                self.held = [(name, facts) for name, facts in self.held if self._waits(name)]
                self._write_notes()

    def _waits(self, name):
        return any(getattr(saved.publish, "name", "") == name for saved in self._queue.waiting)

    def _write_notes(self):
        held, self.held = self.held, []
        try:
            self.work.directory.mkdir(parents=True, exist_ok=True)
            for name, facts in held:
                self.work.note(name, facts)
        except OSError as error:  # Training is to go on.
            logger.error("libckpt: %s: %s; files that are on their way come only if this process "
                         "ends by itself", self.work.directory, error)  # fmt: skip

    def is_coming(self, path):
        """Whether it was captured and is not in its place yet."""
        return self._queue is not None and any(
            isinstance(saved.publish, _Place) and saved.publish.paths == [path]
            for saved in self._queue.waiting
        )

    def remove_later(self, path, remove):
        """Removes it once all that was saved before is in its place. False: nothing waits."""
        if self._queue is None or not self._queue.waiting:
            return False
        with _publish_queue.turn():
            if self._queue.waiting:
                step = self._queue.waiting[-1].step
                name = self._note(step, path, True)
                self._queue.post(step, _Remove(self.work, name, path, remove))
                return True
        return False


class _Place:
    def __init__(self, work, name, path):
        self._work, self.name, self.paths = work, name, [path]

    def __call__(self, step_directory, files):
        if files is None:
            logger.warning(
                "libckpt: %s does not come: a newer save overtook it on its way to storage, which "
                "is slower than Lightning saves; save less often, or to faster storage",
                self.paths[0],
            )
        else:
            _disk.place(files[FILE], self.paths[0])
            logger.info("libckpt: %s is complete", self.paths[0])
        self._work.drop(self.name)


class _Remove:
    def __init__(self, work, name, path, remove):
        self._work, self.name, self._remove, self.paths = work, name, remove, [path]

    def __call__(self, step_directory, files):
        self._remove(self.paths[0])
        self._work.drop(self.name)


def await_file(path, deadline):
    """Waits for a file that another rank publishes."""
    ends = time.monotonic() + deadline
    while not os.path.exists(path) and time.monotonic() < ends:
        time.sleep(_publish_queue.LOOK_EVERY)


def settle():
    try:
        _publish_queue.settle(wait=True)
    except errors.CheckpointError as error:
        logger.error("libckpt: files are not in their places: %s", error)
