"""libckpt for plain PyTorch loops: saves that return at once, and sets that appear whole.

    with libckpt.torch.checkpoint(exp_dir, step=step):
        torch.save(model.state_dict(), exp_dir / "model.pt")
        torch.save(optimizer.state_dict(), exp_dir / "optimizer.pt")
        (exp_dir / "state.json").write_text(json.dumps(state))

All that the block writes below `exp_dir` becomes visible at once, when all of it is on storage, or
never. `save` and `load` are drop-in functions for single files.
"""

import contextlib
import hashlib
import logging
import os
import pathlib
import re
import shutil
import threading
import time

import torch

from libckpt import errors
from libckpt.core.files import _publish_queue, _unsaved, _work
from libckpt.torch import _collector, _published_sets, _staging
from libckpt.adapters.torch._members import TorchMember

__all__ = ["checkpoint", "load", "resume", "save", "wait"]

logger = logging.getLogger("libckpt")

BOXES_MAX = 2  # That are open: a loop may write to a new directory each time.
FILE = "file"  # The member of a save, whatever its path: so the next one finds Slots that fit.

_boxes = {}  # By where their steps are; the last is the one that was used last.
_block = threading.Lock()  # One block at a time: it replaces functions of modules.


@contextlib.contextmanager
def checkpoint(directory, *, step):
    """Publishes all that the block writes below `directory` as one set, when it is on storage.

    The names stay those of the loop. The block may also write into the folder that is yielded, by
    whatever means. When it raises, nothing of it is published. Tensors given to `torch.save` are
    copied when the block ends; small files are written at once, aside.
    """
    spelled, directory = directory, pathlib.Path(os.path.realpath(directory))
    directory.mkdir(parents=True, exist_ok=True)
    if not _block.acquire(blocking=False):
        raise errors.InvalidArgument(
            f"checkpoint in {spelled}: another block has not ended, and they do not nest: end "
            "that one first"
        )
    try:
        _publish_queue.settle()
        sets = _published_sets.PublishedSets(directory)
        box = _box(directory, sets.private / "job", sets)
        name = f"{step:09d}-{os.getpid()}-{time.time_ns():x}"
        folder = sets.work.begin(name)
        staging = _staging.Staging(
            directory, folder, _publish_queue.MEMBERS_MAX, lambda changed: _settle_for(box, changed)
        )
        before = _seen(directory)
        collector = _collector.Collector(spelled, staging)
        try:
            with collector:
                yield folder
        except BaseException:
            sets.work.drop(name)
            raise
        _tell_of_others(directory, before, collector.led_out)
        if staging.is_empty():
            sets.work.drop(name)
            logger.warning(
                "libckpt: checkpoint in %s: the block of step %s wrote nothing below it; what was "
                "published stays", directory, step,
            )  # fmt: skip
            return
        with _publish_queue.turn():
            _hand_over(box, sets, name, staging)
    finally:
        _block.release()


def _box(path, directory, sets=None):
    """The outbox that keeps its steps in the directory; None when none can be opened, which is
    told. `path` is what it is for."""
    key = str(directory)
    if key in _boxes and _boxes[key].is_ours():
        _boxes[key] = _boxes.pop(key)  # The last is the one that was used last.
        return _boxes[key]
    _close_boxes(BOXES_MAX - 1)
    if sets is not None:
        sets.work.drop_all()  # Of a process before: who resumed without it began elsewhere.
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name)[:60]
    job = f"torch-{readable}-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"
    try:
        # Who saves to a path saves it alone, also where torchrun has started others.
        _boxes[key] = _publish_queue.PublishQueue(job, directory, rank=0, world_size=1)
    except errors.CheckpointError as error:
        logger.error("libckpt: %s: %s; stock torch saves instead", path, error)
        return None
    return _boxes[key]


def _close_boxes(count):
    """Leaves at most so many open, those that were used last: each has memory of the daemon's."""
    for key in [key for key, box in _boxes.items() if not box.is_ours()]:
        del _boxes[key]
    while len(_boxes) > count:
        idle = [key for key, box in _boxes.items() if not box.waiting]
        if idle:
            _boxes.pop(idle[0]).close()
        else:
            _publish_queue.settle(wait=True)


def _capture(box, items):
    """In the memory of the others, when there is no other."""
    try:
        return box.capture(items)
    except errors.Exhausted:
        _publish_queue.settle(wait=True)
        others = [key for key, other in _boxes.items() if other is not box]
        if not others:
            raise
        for key in others:
            _boxes.pop(key).close()
    return box.capture(items)


def _settle_for(box, name):
    """Who reads or changes a name has what an earlier block made of it."""
    if box is not None and any(saved.publish.has(name) for saved in box.waiting):
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


def _hand_over(box, sets, name, staging):
    publish = _PublishSet(sets, name, staging)
    items = {member: TorchMember(content) for member, content in staging.objects.items()}
    try:
        if box is None:
            raise errors.Unavailable("there is no session")
        _make_replaceable(box, publish)
        sets.work.sync(name)  # Before anybody may publish it.
        step = _capture(box, items)
    except errors.CheckpointError as error:
        if box is not None:
            logger.error("libckpt: checkpoint in %s: %s; stock torch saves instead",
                         sets.directory, error)  # fmt: skip
        for member, content in staging.objects.items():
            path = sets.work.folder(name) / member
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, path)
        _publish_queue.settle(wait=True)
        publish(None, {})
        return
    sets.work.note(name, {"step": step, **publish.facts})
    box.post(step, publish)


def _make_replaceable(box, publish):
    """A save may overtake those before it on the way to storage: they are then never published, so
    it must do all that they do, or come after them."""
    for saved in box.waiting:
        earlier = saved.publish
        if earlier.names - publish.names - publish.facts["deleted"].keys():
            _publish_queue.settle(wait=True)
            return
    for saved in box.waiting:
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


def _tell_of_others(directory, before, led_out):
    for path in sorted(led_out):
        logger.error(
            "libckpt: checkpoint in %s: %s leads out of it, and is not part of the set: its folder "
            "is a link to elsewhere",
            directory,
            path,
        )
    for name, seen in _seen(directory).items():
        if before.get(name) != seen:
            logger.error(
                "libckpt: checkpoint in %s: %s was written past the block, and is not part of "
                "the set: write it with open(), torch.save(), or into the folder that is yielded",
                directory,
                name,
            )


def resume(directory, deadline=10.0):
    """Publishes the newest set that a killed run had captured. Call it before the resume code.

    Without it the resume code reads the set before that one, which is as whole. Waits for at most
    `deadline` seconds for the daemon to bring it to storage. Returns whether there was one.
    """
    sets = _published_sets.PublishedSets(os.path.realpath(directory))
    ends = time.monotonic() + deadline
    for name, note in sets.work.noted():
        while True:
            path, files = _publish_queue.find_step(sets.private / "job", note["step"])
            if path is not None:
                sets.publish(name, files, note)
                return True
            if time.monotonic() > ends:
                break
            time.sleep(0.02)
    return False


def save(content, path, *arguments, **options):
    """As torch.save, but it returns once the tensors are copied in memory.

    The path appears, or is replaced by a new file, when its bytes are on storage: in the order of
    the calls, at the latest when the process ends or `wait` is called. File objects and any other
    arguments go to torch.save.
    """
    is_path = isinstance(path, (str, os.PathLike))
    if arguments or options or not is_path or _block.locked():
        return torch.save(content, path, *arguments, **options)
    path = pathlib.Path(os.path.realpath(path))
    if not _work.can_place(path):
        _publish_queue.settle(wait=True)
        return torch.save(content, path)
    with _publish_queue.turn():
        return _save_to(path, content)


def _save_to(path, content):
    _publish_queue.settle()
    box = _box(path.parent, path.parent / ".libckpt" / "files")
    # One save of a directory is on its way: another could overtake it.
    _publish_queue.settle(wait=box is None or bool(box.waiting))
    if box is not None:
        try:
            step = _capture(box, {FILE: TorchMember(content)})
        except errors.CheckpointError as error:
            logger.error("libckpt: save %s: %s; stock torch saves instead", path, error)
        else:
            box.post(step, _PlaceFile(path))
            return None
    _publish_queue.settle(wait=True)
    aside = path.with_name(f".{path.name}.stock")
    torch.save(content, aside)
    _work.place(aside, path)
    aside.unlink()
    return None


class _PlaceFile:
    """Gives the file its name; the daemon's directory of it goes: who deletes the file is to have
    its space back."""

    def __init__(self, path):
        self._path = path
        self.paths = [path]

    def __call__(self, step_directory, files):
        _work.place(files[FILE], self._path)
        shutil.rmtree(step_directory, ignore_errors=True)


def load(path, *arguments, **options):
    """As torch.load; what this process has saved but not published yet is waited for.

    Raises StorageError when what was saved to the path was lost, Unavailable when it does not come.
    """
    _publish_queue.settle(wait=True)
    if isinstance(path, (str, os.PathLike)):
        reason = _unsaved.reason(path)
        if reason is not None:
            raise errors.StorageError(
                f"load {path}: what was saved to it is lost, and what was there before is not it "
                f"(torch.load reads that): {reason}"
            )
        if os.path.realpath(path) in _publish_queue.waiting_paths():
            raise errors.Unavailable(f"load {path}: what was saved to it is not on storage yet")
    return torch.load(path, *arguments, **options)


def wait():
    """Waits until all that was saved so far is on storage and published.

    Raises StorageError, once, when some of it was lost since the last call, with a daemon that was
    killed or on a full disk: these paths have what was there before. Unavailable: not in 10 min.
    """
    _publish_queue.settle(wait=True)
    lost = _unsaved.take_untold()
    if lost:
        raise errors.StorageError(
            f"wait: what was saved to {_listed(lost)} is lost, save it again: "
            f"{next(iter(lost.values()))}"
        )
    late = _publish_queue.waiting_paths()
    if late:
        raise errors.Unavailable(
            f"wait: what was saved to {_listed(late)} is not on storage yet (`ckpt status` tells "
            "what keeps it from there)"
        )


def _listed(paths, count=8):
    paths = list(dict.fromkeys(paths))
    more = f" and {len(paths) - count} more" if len(paths) > count else ""
    return ", ".join(paths[:count]) + more
