"""Unvalidated: steps that a validation follows, and the file that was saved before it.

    DIR/.libckpt/lightning-unvalidated.json    the file's step, and the newest one in memory then

Lightning, resumed from such a file, takes the validation for made. A run that is killed within the
validation therefore goes on from the step in memory, which makes both again.
"""

import contextlib
import json
import pathlib

from libckpt.core.files import _disk, _work


def is_next(trainer):
    """Whether Lightning validates behind this batch, as far as this version can be asked."""
    loop = trainer.fit_loop
    ask = getattr(loop.epoch_loop, "_should_check_val_fx", None)
    if trainer.val_dataloaders is not None and loop.epoch_loop.val_loop.skip:
        return False  # There is no batch for it.
    return ask is not None and bool(ask(getattr(loop, "_data_fetcher", None)))


def note(directory, step, memory_step):
    """`memory_step` None: the file is saved at another moment."""
    path = _path(directory)
    with contextlib.suppress(OSError):  # The file itself fails, too, and says so.
        if memory_step is None:
            path.unlink(missing_ok=True)
        else:
            assert memory_step < step
            _disk.replace_text(path, json.dumps({"step": step, "memory": memory_step}))


def memory_step(directory, step):
    """The step in memory that makes the validation of the file's step; None: the file is good."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(_path(directory).read_text())
        return noted["memory"] if noted["step"] == step else None
    return None


def _path(directory):
    return pathlib.Path(directory, _work.PRIVATE, "lightning-unvalidated.json")
