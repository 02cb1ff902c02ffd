"""libckpt for plain PyTorch loops: saves that return at once, and sets that appear whole.

    with libckpt.torch.checkpoint(exp_dir, step=step) as folder:
        folder.save(model.state_dict(), "model.pt")
        folder.save(optimizer.state_dict(), "optimizer.pt")
        (folder / "state.json").write_text(json.dumps(state))

All that the block writes appears in `exp_dir` at once, when all of it is on storage, or never. A
loop that saves to `exp_dir` itself needs the first line only. `save` and `load` are drop-in
functions for single files.
"""

import logging
import os
import pathlib
import shutil
import time

import torch

from libckpt import errors
from libckpt.adapters.torch._members import TorchMember
from libckpt.core.files import _disk, _leftovers, _publish_queue, _storage, _unsaved, _work
from libckpt.torch import _block, _published_sets, _queues
from libckpt.torch._block import Folder, checkpoint

__all__ = ["Folder", "checkpoint", "load", "resume", "save", "wait"]

logger = logging.getLogger("libckpt")

FILE = "file"  # The member of a save, whatever its path: so the next one finds Slots that fit.


def resume(directory, deadline=10.0):
    """Publishes the newest set that a killed run had captured. Call it before the resume code.

    Without it the resume code reads the set before that one, which is as whole. Waits for at most
    `deadline` seconds for the daemon to bring it to storage. Returns whether there was one.
    """
    sets = _published_sets.PublishedSets(os.path.realpath(directory))
    ends = time.monotonic() + deadline
    for name, facts in sets.work.noted():
        path, files = _leftovers.await_step(sets.private / "job", facts["step"], ends)
        if path is not None:
            sets.publish(name, files, facts)
            return True
    return False


def save(content, path, *arguments, **options):
    """As torch.save, but it returns once the tensors are copied in memory.

    The path appears, or is replaced by a new file, when its bytes are on storage: in the order of
    the calls, at the latest when the process ends or `wait` is called. File objects and any other
    arguments go to torch.save.
    """
    is_path = isinstance(path, (str, os.PathLike))
    if arguments or options or not is_path or _block.is_running():
        return torch.save(content, path, *arguments, **options)
    path = pathlib.Path(os.path.realpath(path))
    if not _disk.can_place(path):
        _publish_queue.settle(wait=True)
        return torch.save(content, path)
    with _publish_queue.turn():
        return _save_to(path, content)


def _save_to(path, content):
    _publish_queue.settle()
    queue = _queues.open_for(path.parent, path.parent / _work.PRIVATE / "files", keeps_none=True)
    # One save of a directory is on its way: another could overtake it.
    _publish_queue.settle(wait=queue is None or bool(queue.waiting))
    if queue is not None:
        try:
            step = _queues.capture(queue, {FILE: TorchMember(content, as_it_is=True)})
        except errors.CheckpointError as error:
            logger.error("libckpt: save %s: %s; stock torch saves instead", path, error)
        else:
            queue.post(step, _PlaceFile(path))
            return None
    _publish_queue.settle(wait=True)
    aside = path.with_name(f".{path.name}.stock")
    torch.save(content, aside)
    _disk.place(aside, path)
    aside.unlink()
    return None


class _PlaceFile:
    """Gives the file its name, and removes the daemon's directories of earlier ones: so a file that
    is deleted later gives its space back. The newest directory stays, since the daemon would take
    it for lost: it warns of that, and stores the step again."""

    def __init__(self, path):
        self._path = path
        self.paths = [path]

    def __call__(self, step_directory, files):
        _disk.place(files[FILE], self._path)
        for _, older in _storage.steps(step_directory.parent):
            if older == step_directory:
                break
            shutil.rmtree(older, ignore_errors=True)


def load(path, *arguments, **options):
    """As torch.load; waits for files that this process has saved but not published yet.

    Raises StorageError when the save to the path was lost, Unavailable when it does not come.
    """
    _publish_queue.settle(wait=True)
    if isinstance(path, (str, os.PathLike)):
        reason = _unsaved.reason(path)
        if reason is not None:
            raise errors.StorageError(
                f"load {path}: the newest save to it is lost, and the file there is an older one "
                f"(torch.load reads that): {reason}"
            )
        if os.path.realpath(path) in _publish_queue.waiting_paths():
            raise errors.Unavailable(f"load {path}: the newest save to it is not on storage yet")
    return torch.load(path, *arguments, **options)


def wait():
    """Waits until all saves so far are on storage and published.

    Raises StorageError, once, when some were lost since the last call, with a daemon that was
    killed or on a full disk: these paths keep their older files. Unavailable: not in 10 min.
    """
    _publish_queue.settle(wait=True)
    lost = _unsaved.take_unreported()
    if lost:
        raise errors.StorageError(
            f"wait: the newest save to {_listed(lost)} is lost, save it again: "
            f"{next(iter(lost.values()))}"
        )
    late = _publish_queue.waiting_paths()
    if late:
        raise errors.Unavailable(
            f"wait: the newest save to {_listed(late)} is not on storage yet (`ckpt status` says "
            "what keeps it from there)"
        )


def _listed(paths, count=8):
    paths = list(dict.fromkeys(paths))
    more = f" and {len(paths) - count} more" if len(paths) > count else ""
    return ", ".join(paths[:count]) + more
