"""Ids: the meaning of a checkpoint_id. "ckpt://JOB/step-N" and "ckpt://JOB/latest" are steps of a
job of libckpt, with "?source=memory" or "?source=storage" from there alone; everything else is the
path of a folder, as for stock DCP.
"""

import dataclasses
import os
import re

from libckpt import errors
from libckpt.core import _turn

SCHEME = "ckpt://"
LATEST = "latest"
SOURCE = "source="
STEP = re.compile(r"^step-(\d+)$")


@dataclasses.dataclass(frozen=True)
class Id:
    """Names a job's step; None: the newest one."""

    job: str
    step: int | None = None
    has_step: bool = True  # Whether it names a step, or only the job.
    source: str | None = None  # The place to load from; None: any.

    def __str__(self):
        word = LATEST if self.step is None else f"step-{self.step}"
        return f"{SCHEME}{self.job}/{word}" + (f"?{SOURCE}{self.source}" if self.source else "")


def parse(checkpoint_id):
    """An Id, or a path as text."""
    text = os.fspath(checkpoint_id)
    if text.startswith("ckpt:/") and not text.startswith(SCHEME):
        text = SCHEME + text.removeprefix("ckpt:/").lstrip("/")  # It went through a Path.
    if not text.startswith(SCHEME):
        if "://" in text:
            raise errors.InvalidArgument(
                f'checkpoint_id "{text}": libckpt.dcp.Storage writes folders of a file system: '
                "give DCP its own FsspecWriter and FsspecReader for this one"
            )
        return text
    name, has_query, query = text.removeprefix(SCHEME).partition("?")
    job, _, word = name.rstrip("/").partition("/")
    found = STEP.match(word)
    is_wrong_query = has_query and not query.startswith(SOURCE)
    if not job or is_wrong_query or not (word in ("", LATEST) or found):
        raise errors.InvalidArgument(
            f'checkpoint_id "{text}": give "ckpt://JOB/step-N" with the number of the step, or '
            '"ckpt://JOB/latest" to load the newest one, either with "?source=memory" or '
            '"?source=storage" behind it to load from there alone; or the path of a folder'
        )
    source = query.removeprefix(SOURCE) if has_query else None
    _turn.check_source(source)
    return Id(job, int(found[1]) if found else None, bool(word), source)
