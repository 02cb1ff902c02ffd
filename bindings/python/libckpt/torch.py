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
import threading
import time

import torch

from libckpt import _collect, _outbox, _published, _work, errors
from libckpt._members import TorchMember

__all__ = ["checkpoint", "load", "resume", "save", "wait"]

logger = logging.getLogger("libckpt")

_boxes = {}  # By what they publish: a directory of sets, or a file.
_block = threading.Lock()  # One block at a time: it replaces functions of modules.


@contextlib.contextmanager
def checkpoint(directory, *, step):
    """Publishes all that the block writes below `directory` as one set, when it is on storage.

    The names stay those of the loop. The block may also write into the folder that is yielded, by
    whatever means. When it raises, nothing of it is published. Tensors given to `torch.save` are
    copied when the block ends; small files are written at once, aside.
    """
    directory = pathlib.Path(os.path.realpath(directory))
    directory.mkdir(parents=True, exist_ok=True)
    if not _block.acquire(blocking=False):
        raise errors.InvalidArgument("checkpoint: there is a block already; they do not nest")
    try:
        _outbox.settle()
        sets = _published.PublishedSets(directory)
        box = _box(directory, sets.private / "job", sets)
        name = f"{step:09d}-{os.getpid()}-{time.time_ns():x}"
        folder = sets.work.begin(name)
        objects = {}
        before = _seen(directory)
        try:
            with _collect.Collector(directory, folder, lambda c, n: _take(objects, c, n)):
                yield folder
        except BaseException:
            sets.work.drop(name)
            raise
        _tell_of_others(directory, before)
        _hand_over(box, sets, name, objects)
    finally:
        _block.release()


def _box(path, directory, sets=None):
    """The outbox of the path; None when none can be opened, which is told."""
    key = str(path)
    if key not in _boxes or not _boxes[key].is_ours():
        if sets is not None:
            sets.work.drop_all()  # Of a process before: who resumed without it began elsewhere.
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name)[:60]
        job = f"torch-{readable}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
        try:
            # Who saves to a path saves it alone, also where torchrun has started others.
            _boxes[key] = _outbox.Outbox(job, directory, rank=0, world_size=1)
        except errors.CheckpointError as error:
            logger.error("libckpt: %s: %s; stock torch saves instead", path, error)
            return None
    return _boxes[key]


def _take(objects, content, name):
    if len(objects) >= _outbox.MEMBERS_MAX and name not in objects:
        return False  # As many members as a step can have: stock torch writes the others aside.
    objects[name] = content
    return True


def _hand_over(box, sets, name, objects):
    items = {member: TorchMember(content) for member, content in objects.items()}
    try:
        if box is None:
            raise errors.Unavailable("there is no session")
        sets.work.sync(name)  # Before anybody may publish it.
        step = box.capture(items)
    except errors.CheckpointError as error:
        if box is not None:
            logger.error("libckpt: checkpoint %s: %s; stock torch saves instead", name, error)
        for member, content in objects.items():
            path = sets.work.folder(name) / member
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, path)
        _outbox.settle(wait=True)
        sets.publish(name, {})
        return
    sets.work.note(name, {"step": step})

    def publish(path, files):
        if path is None:
            sets.work.drop(name)
        else:
            sets.publish(name, files)

    box.post(step, publish)


def _seen(directory):
    found = {}
    for entry in os.scandir(directory):
        if entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            found[entry.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def _tell_of_others(directory, before):
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
    sets = _published.PublishedSets(os.path.realpath(directory))
    ends = time.monotonic() + deadline
    for name, note in sets.work.noted():
        while True:
            path, files = _outbox.find_step(sets.private / "job", note["step"])
            if path is not None:
                sets.publish(name, files)
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
    box = _box(path, path.parent / ".libckpt" / "files" / path.name)
    _outbox.settle(wait=box is None or bool(box.waiting))  # A path has one save on its way.
    if box is not None:
        try:
            step = box.capture({path.name: TorchMember(content)})
        except errors.CheckpointError as error:
            logger.error("libckpt: save %s: %s; stock torch saves instead", path, error)
        else:
            box.post(step, lambda _, files: _work.place(files[path.name], path))
            return None
    _outbox.settle(wait=True)
    aside = path.with_name(f".{path.name}.stock")
    torch.save(content, aside)
    _work.place(aside, path)
    aside.unlink()
    return None


def load(path, *arguments, **options):
    """As torch.load; what this process has saved but not published yet is waited for."""
    wait()
    return torch.load(path, *arguments, **options)


def wait():
    """Waits until all that was saved so far is on storage and published."""
    _outbox.settle(wait=True)
