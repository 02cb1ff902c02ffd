"""Block: the files that one save block writes below its directory become one published set."""

import contextlib
import logging
import os
import pathlib
import time

from libckpt import errors
from libckpt.adapters.torch._members import TorchMember
from libckpt.core.files import _disk, _publish_queue
from libckpt.torch import _collector, _published_sets, _queues, _staging

logger = logging.getLogger("libckpt")

_running = []  # The first one: there is one block at a time, as it replaces functions of modules.


class Folder(type(pathlib.Path())):
    """The folder that a block writes to: its files have the names that they are to have."""

    _staging = None  # None once the block has ended.

    def save(self, content, name):
        """As torch.save(content, folder / name), but the tensors are copied when the block ends,
        and written by the daemon."""
        name = os.path.normpath(name)
        if self._staging is None or os.path.isabs(name) or name.split(os.sep)[0] == os.pardir:
            raise errors.InvalidArgument(
                f"save {name}: give a name in the folder that a block yields, before it ends"
            )
        self._staging.take(name, content)


def is_running():
    return bool(_running)


@contextlib.contextmanager
def checkpoint(directory, *, step):
    """Publishes all that the block writes as one set below `directory`, when it is on storage.

    Yields a Folder, a path to write to by any means. Its `save(content, name)` is for what
    `torch.save` is used for: the tensors are copied in memory when the block ends, and the daemon
    writes them. When the block raises, nothing of it is published.
    For a loop as it is, `torch.save`, `open` and the usual functions of `os` lead there too while
    the block lasts, on its thread and for paths below `directory`.
    """
    spelled, directory = directory, pathlib.Path(_disk.local(directory, "files of a block"))
    directory.mkdir(parents=True, exist_ok=True)
    block = object()
    try:  # From here on, since Ctrl-C may come right behind the next line.
        _running.append(block)
        if _running[0] is not block:
            raise errors.InvalidArgument(
                f"checkpoint in {spelled}: another block has not ended, and they do not nest: end "
                "that one first"
            )
        _publish_queue.settle()
        sets = _published_sets.PublishedSets(directory)
        # An earlier process's leftovers are dropped: a resume without them began elsewhere.
        queue = _queues.open_for(directory, sets.private / "job", on_new=sets.work.drop_all)
        name = f"{step:09d}-{os.getpid()}-{time.time_ns():x}"
        folder = Folder(sets.work.begin(name))
        staging = folder._staging = _staging.Staging(
            directory, folder, _publish_queue.MEMBERS_MAX,
            lambda changed: _settle_for(queue, changed),
        )  # fmt: skip
        before, began = _seen(directory), folder.stat().st_mtime_ns
        collector = _collector.Collector(spelled, staging)
        try:
            with _not_removed(folder, f"checkpoint in {spelled}"), collector:
                yield folder
        except BaseException:
            sets.work.drop(name)
            raise
        finally:
            folder._staging = None
            collector.end()  # Ctrl-C may have come before its own end had done all.
        past = [name for name, seen in _seen(directory).items() if before.get(name) != seen]
        folders = {os.path.dirname(name) for name in staging.names()} - {""}
        past += _written_since(began, directory, folders)
        _log_others(directory, past, collector.led_out)
        if staging.is_empty():
            sets.work.drop(name)
            logger.warning(
                "libckpt: checkpoint in %s: the block of step %s wrote nothing below it; its "
                "published files stay", directory, step,
            )  # fmt: skip
            return
        with _publish_queue.turn():
            _hand_over(queue, sets, name, staging)
    finally:
        _running.remove(block)


@contextlib.contextmanager
def _not_removed(folder, what):
    """The staging would make it anew, and a part of the files be published."""
    descriptor = os.open(folder, os.O_RDONLY)  # Else another folder could have its number.
    try:
        yield
        if not (folder.is_dir() and os.path.samestat(folder.stat(), os.fstat(descriptor))):
            raise errors.StorageError(
                f"{what}: {folder}, where the block's files lay, was removed while it ran: none of "
                "them is published"
            )
    finally:
        os.close(descriptor)


def _settle_for(queue, name):
    """A name that is read or changed is what an earlier block made of it."""
    if queue is not None and any(saved.publish.has(name) for saved in queue.waiting):
        _publish_queue.settle(wait=True)


class _PublishSet:
    """Publishes what one block wrote; called when its members are on storage."""

    def __init__(self, sets, name, staging):
        self._sets, self._name = sets, name
        self.names, self.facts = staging.names(), staging.facts()

    @property
    def paths(self):
        return [self._sets.directory / name for name in sorted(self.names)]

    def has(self, name):
        return name in self.names or name in self.facts["deleted"]

    def __call__(self, path, files):
        if files is None:  # A newer one overtook it, which has all that it has.
            self._sets.work.drop(self._name)
        else:
            self._sets.publish(self._name, files, self.facts)


def _hand_over(queue, sets, name, staging):
    publish = _PublishSet(sets, name, staging)
    items = {member: TorchMember(part, as_it_is=True) for member, part in staging.objects.items()}
    try:
        if queue is None:
            raise errors.Unavailable("there is no session")
        _make_replaceable(queue, publish)
        sets.work.sync(name)  # Before it can be published.
        step = _queues.capture(queue, items)
    except errors.CheckpointError as error:
        if queue is not None:
            logger.error("libckpt: checkpoint in %s: %s; stock torch saves instead",
                         sets.directory, error)  # fmt: skip
        staging.write_objects()
        _publish_queue.settle(wait=True)
        publish(None, {})
        return
    sets.work.note(name, {"step": step, **publish.facts})
    queue.post(step, publish)


def _make_replaceable(queue, publish):
    """A save may overtake those before it on the way to storage: they are then never published, so
    it must do all that they do, or come after them."""
    for saved in queue.waiting:
        earlier = saved.publish
        if earlier.names - publish.names - publish.facts["deleted"].keys():
            _publish_queue.settle(wait=True)
            return
    for saved in queue.waiting:
        facts = saved.publish.facts
        deleted = facts["deleted"] | publish.facts["deleted"]
        publish.facts["deleted"] = {n: deleted[n] for n in deleted if n not in publish.names}
        publish.facts["removed"] = sorted({*facts["removed"], *publish.facts["removed"]})


def _seen(directory):
    found = {}
    for entry in os.scandir(directory):
        if entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            found[entry.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def _written_since(began, directory, folders):
    """The names of files in these folders that were written after that time."""
    for folder in sorted(folders):
        with contextlib.suppress(OSError):  # It is in the set only.
            for entry in os.scandir(directory / folder):
                is_file = entry.is_file(follow_symlinks=False)
                if is_file and entry.stat(follow_symlinks=False).st_mtime_ns > began:
                    yield os.path.join(folder, entry.name)


def _log_others(directory, past, led_out):
    """Files that belong to no set: their writers do not call Python, or lead elsewhere."""
    for path in sorted(led_out):
        logger.error(
            "libckpt: checkpoint in %s: %s leads out of it, and is not part of the set: its folder "
            "is a link to elsewhere",
            directory,
            path,
        )
    for name in past:
        logger.error(
            "libckpt: checkpoint in %s: %s was written past the block, and is not part of the set: "
            "write it into the folder that is yielded",
            directory,
            name,
        )
