"""File sets: folders that a framework reads, with files of all ranks; each appears whole or not at
all.

    DIR/.libckpt/job/            the job whose checkpoints hold what the ranks captured
    DIR/.libckpt/work/7/rank-0/  what rank 0 wrote by itself for the set of step 7
    DIR/.libckpt/work/7/captured-0    rank 0 captured its part; missed-0: it could not
    DIR/.libckpt/work/7.json     the set's name and trackers, once rank 0 has captured its part
    DIR/.libckpt/sets/NAME.json  the files that the set has from libckpt
    DIR/NAME/                    the set: one rename brings it, with every rank's files
    DIR/latest                   a tracker: a text that is replaced after that

Each rank captures its objects, and waits for no other one. A step is on storage when the parts of
all ranks are, and each rank has synced its own files before it captures. Then rank 0 links all of
them to their names. A process that dies leaves a set that is whole, or one that the next process
completes, or nothing that a reader sees.
"""

import contextlib
import json
import logging
import os
import pathlib
import re
import shutil

from libckpt import errors
from libckpt.adapters.torch._file_set import FileSet, is_missed
from libckpt.core.files import _disk, _leftovers, _publish_queue, _shared_queues, _storage
from libckpt.core.files._work import PRIVATE, WorkFolders

logger = logging.getLogger("libckpt")

OF_PLACE = ("node", "nodes", "interface", "port", "secret_file", "runtime_dir", "daemon_path",
            "incarnation", "embedded", "replicas")  # fmt: skip  Options for sessions alike.
NAME = re.compile(r"^[^./][^/]*(/[^./][^/]*)*$")


class FileSets:
    """The sets of one directory. All ranks open it, and make the same calls in the same order.

    `kind` names the framework; `options` are those of libckpt.init. `area`: a folder below .libckpt
    for these sets alone, where others write into the directory, too. With `keeps_foreign`, files
    that another program had in the folder of a set stay there. `is_once`: a folder that is there is
    never replaced, as where the framework refuses that, too.
    """

    def __init__(self, kind, directory, *, rank=0, world_size=1, area="", keeps_foreign=True,
                 is_once=False, **options):  # fmt: skip
        self.directory = pathlib.Path(os.path.realpath(directory))
        self.rank, self.world_size = rank, world_size
        self.private = self.directory / PRIVATE / area
        self._keeps_foreign, self._is_once = keeps_foreign, is_once
        self.work = WorkFolders(self.private / "work")
        job = _publish_queue.job_of(kind, self.directory.name, self.directory / area)
        self._is_closed = False  # Others may have the queue still.
        is_settled = _shared_queues.settle_earlier(job, self.private / "job")
        # Left by a killed run, on rank 0: (number, facts), the newest first.
        noted = self.work.noted() if rank == 0 and is_settled else []
        self._left = sorted(((int(name), facts) for name, facts in noted), key=lambda one: -one[0])
        if rank == 0 and is_settled and _leftovers.attempt(self.directory, self._finish):
            self.work.drop_all()
            shutil.rmtree(self.private / "trash", ignore_errors=True)
        self._queue = _shared_queues.opened(
            job, self.private / "job", rank=rank, world_size=world_size, **options
        )
        self._ranks = self._queue.session.ranks
        self._note_unfinished()

    def begin(self, name, may_be_aside=False):
        """A set that this rank may write to, and commits. Raises StorageError if its folder cannot
        be made. With `may_be_aside`, for files that are small, they are written elsewhere then, and
        the set is given up by its commit, which logs that."""
        if not NAME.match(name):
            raise errors.InvalidArgument(
                f'"{name}" is to be a folder below {self.directory}: it has no slash at its ends, '
                "and no dot in front of a part"
            )
        with _publish_queue.turn():
            self._finish_again()
            _publish_queue.settle_to(self._queue, 1)  # Each that was asked for is to come.
            return FileSet(self, name, self._queue.next_step(), may_be_aside)

    def settle(self):
        """Returns when all that was committed is there, or was given up. All ranks call it."""
        with _publish_queue.turn():
            self._finish_again()
        _publish_queue.settle(wait=True)
        self._ranks.meet("published files")
        self._note_unfinished()

    def decide(self, what, value):
        """As rank 0 says it. All ranks call it."""
        return self._ranks.decide(what, value, lambda said: said[0])

    def waiting(self):
        """The names of the sets that are on their way."""
        return [waiting.publish.name for waiting in self._queue.waiting]

    def is_open(self):
        return not self._is_closed and self._queue.is_ours()

    def let_go(self):
        """Closes it, and frees its memory, once what was committed is there; it waits for nothing
        newer, and no longer than a save does. Returns whether it did. All ranks call it."""
        if self._is_closed:
            return True
        with _publish_queue.turn():
            self._finish_again()
            _publish_queue.settle_to(self._queue, 0)
        is_published = self.decide("published", not self._queue.waiting)
        if is_published:
            self._is_closed = True
            self._queue.close()
        return is_published

    def close(self):
        if not self._is_closed:
            self.settle()
            self._is_closed = True
            self._queue.close()

    # --- what a killed run has left

    def _finish(self):
        """Publishes what it had captured on all ranks, the oldest first, and drops the rest."""
        ends = _leftovers.ends()
        while self._left:
            step, facts = self._left[-1]
            folder = self.work.folder(str(step))
            may_come = all((folder / f"captured-{r}").exists() for r in range(facts["ranks"]))
            may_come = may_come and not any(folder.glob("missed-*"))
            path, _ = _leftovers.await_step(self.private / "job", step, ends if may_come else 0)
            if path is None or not may_come or is_missed(folder, path):
                _leftovers.log_dropped(self.directory / facts["name"], may_come)
                self.work.drop(str(step))
            else:
                self.publish(step, facts, path)
            self._left.pop()

    def _finish_again(self):
        """After an OSError. A set of this run that is there by now has dropped older ones."""
        if self._left:
            noted = {int(name) for name, _ in self.work.noted()}
            self._left = [left for left in self._left if left[0] in noted]
            _leftovers.attempt(self.directory, self._finish)

    def _note_unfinished(self):
        """On all ranks: none of them is to begin anew over what is left."""
        reason = _leftovers.reason(self.directory)
        _leftovers.note(self.directory, self.decide("unfinished files", reason))

    # --- publishing, on rank 0

    def publish(self, step, facts, path):
        """Makes the set visible; `path` is its checkpoint, if files of it are in one. It may
        run again after a crash: what was done then is done once more."""
        folder, name = self.work.folder(str(step)), facts["name"]
        if self._is_once and _disk.files_of(self.directory / name):
            logger.warning("libckpt: %s is there already and stays as it is: a save of that name, "
                           "captured before, does not come", self.directory / name)  # fmt: skip
            self._drop_up_to(step)
            return
        whole = folder / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        captured = _storage.files_of(path, facts.get("tensors")) if path is not None else []
        for rank in range(facts["ranks"]):
            own = folder / f"rank-{rank}"
            found = {file: own / file for file in _disk.files_of(own)}
            found |= captured[rank] if captured else {}
            _disk.add_missing(found, whole, _disk.bring)  # The first of several ranks gives it.
        names = _disk.files_of(whole)
        target = self.directory / name
        if target.is_dir() and self._keeps_foreign:
            self._keep_foreign(name, target, whole)
        _disk.sync_tree(whole)
        _disk.swap_in(whole, target)
        _disk.replace_text(self.private / "sets" / f"{name}.json", json.dumps(names))
        for tracker, text in facts["trackers"].items():
            _disk.replace_text(self.directory / tracker, text)
        self._drop_up_to(step)
        logger.info("libckpt: %s is complete", target)

    def _drop_up_to(self, step):
        """Older sets that could not be published: they would come after this one."""
        for name, _ in self.work.noted():
            if int(name) < step:
                self.work.drop(name)
        self.work.drop(str(step))

    def _keep_foreign(self, name, target, whole):
        """Files in the folder that are not of the set that was there before stay."""
        ours = set()
        with contextlib.suppress(OSError, ValueError):  # Another program made it.
            ours = set(json.loads((self.private / "sets" / f"{name}.json").read_text()))
        names = [file for file in _disk.files_of(target) if file not in ours]
        foreign = {file: target / file for file in names}
        _disk.add_missing(foreign, whole, _disk.link_or_copy)

    def remove(self, name):
        """Removes a set that was published here; it vanishes at once. Returns whether it was."""
        target, record = self.directory / name, self.private / "sets" / f"{name}.json"
        if not (NAME.match(name) and record.is_file() and target.is_dir()):
            return False
        aside = _disk.set_aside(target, self.private / "trash")
        record.unlink()
        shutil.rmtree(aside, ignore_errors=True)
        logger.info("libckpt: %s is deleted", target)
        return True


def options_of_place(options):
    """Those of a session that hold for file sets beside it, too."""
    return {name: options[name] for name in OF_PLACE if name in options}
