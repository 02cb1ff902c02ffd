"""Saver: brings trees to step-N folders, behind the training, and deletes temporary ones.

A save is captured by the job of the folders, which brings it to storage. Process 0 then links its
files to their place. A process that dies leaves what was captured for the next one to publish.
"""

import pathlib

from libckpt import errors
from libckpt.core.files import _leftovers, _publish_queue, _shared_queues
from libckpt.core.files._work import PRIVATE, WorkFolders
from libckpt.jax import _capture
from libckpt.levanter import _folders


class Saver:
    is_open = True

    def __init__(self, base, temporary_base, keep_temporary, deletes_old, rank, world_size):
        self._base, self._temporary_base = pathlib.Path(base), pathlib.Path(temporary_base)
        self._private = self._base / PRIVATE
        self._work = WorkFolders(self._private / "work")
        self._keep = keep_temporary
        self._temporary = []  # Folders, the oldest first: of this run, and those from before.
        job = _publish_queue.job_of("levanter", self._base.name, self._base)
        is_settled = _shared_queues.settle_earlier(job, self._private / "job")
        if rank == 0 and deletes_old:
            self._temporary = _folders.temporary({self._base, self._temporary_base})
        if rank == 0 and is_settled:
            _leftovers.attempt(self._base, self._finish)
        self._queue = _shared_queues.opened(
            job, self._private / "job", allow_pickle=False, rank=rank, world_size=world_size,
            advice="step_policies and keep_last_temporary_checkpoints say how many stay",
        )  # fmt: skip
        self._capture = _capture.Capture()
        self._rank = rank
        self._is_begun = self._is_closed = False

    def save(self, step, tree, timestamp, is_temporary):
        """Captures the tree; all processes call it."""
        _publish_queue.settle_to(self._queue, 1)  # Each that was asked for is to come.
        session, failure = self._queue.session, None
        number = self._queue.next_step()
        try:
            items, arrays = self._capture.of(tree)
            if not self._is_begun:
                session.start_fresh()
            ticket = session.save(number, items, _publish_queue.SLOT_DEADLINE, arrays=arrays)
            if not ticket:
                failure = errors.Unavailable(f"save step {step}: {ticket}")
        except Exception as error:
            failure = error
        session.agree(f"save of step {step}", failure)
        self._is_begun = True
        metadata = {"step": step, "timestamp": timestamp, "is_temporary": is_temporary}
        if self._rank == 0:
            self._work.directory.mkdir(parents=True, exist_ok=True)
            self._work.note(str(number), metadata)
        self._queue.post(number, _Publish(self, number, metadata))

    def settle(self, wait=False):
        _publish_queue.settle(wait=wait)
        if wait:
            self._queue.session.agree("published folders", None)

    def close(self):
        if self._is_closed or self._queue.session.is_closed:
            return
        self.settle(wait=True)
        self._is_closed = True  # Others may have the queue still.
        self._queue.close()

    def folder(self, metadata):
        base = self._temporary_base if metadata["is_temporary"] else self._base
        return base / f"step-{metadata['step']}"

    def publish(self, number, metadata, path):
        folder = self.folder(metadata)
        _folders.publish(path, folder, metadata)
        self._work.drop(str(number))
        self._temporary = [each for each in self._temporary if each != folder]
        if metadata["is_temporary"]:
            self._temporary.append(folder)
        # Only now, and only what is still temporary.
        left = self._keep if metadata["is_temporary"] else 0
        while len(self._temporary) > left:
            old = self._temporary.pop(0)
            if (_folders.metadata_of(old) or {}).get("is_temporary"):
                _folders.remove(old)

    def drop(self, number):
        self._work.drop(str(number))

    def _finish(self):
        """Publishes what a killed run had captured in all processes, and drops the rest."""
        ends = _leftovers.ends()
        for number, metadata in reversed(self._work.noted()):
            path, _ = _leftovers.await_step(self._private / "job", int(number), ends)
            if path is not None:
                self.publish(int(number), metadata, path)
            else:
                _leftovers.log_dropped(self.folder(metadata))
        self._work.drop_all()


class NoSaver:
    """In its place, where none can be had."""

    is_open = False

    def settle(self, wait=False):
        """Nothing is on its way."""

    def close(self):
        """Nothing is open."""


class _Publish:
    """Publishes one folder; called when its step is on storage."""

    def __init__(self, saver, number, metadata):
        self._saver, self._number, self._metadata = saver, number, metadata
        self.paths = [saver.folder(metadata)]

    def __call__(self, path, files):
        if self._saver._rank != 0:
            return
        if path is None:
            self._saver.drop(self._number)
        else:
            self._saver.publish(self._number, self._metadata, path)
