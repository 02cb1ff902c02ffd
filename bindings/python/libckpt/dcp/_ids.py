"""Ids: the meaning of a checkpoint_id. "ckpt://JOB/step-N" and "ckpt://JOB/latest" are steps of a
job of libckpt; everything else is the path of a folder, as for stock DCP.
"""

import dataclasses
import os
import re

from libckpt import errors

SCHEME = "ckpt://"
LATEST = "latest"
STEP = re.compile(r"^step-(\d+)$")


@dataclasses.dataclass(frozen=True)
class Id:
    """Names a job's step; None: the newest one."""

    job: str
    step: int | None = None
    has_step: bool = True  # Whether it names a step, or only the job.


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
    job, _, word = text.removeprefix(SCHEME).rstrip("/").partition("/")
    found = STEP.match(word)
    if not job or not (word in ("", LATEST) or found):
        raise errors.InvalidArgument(
            f'checkpoint_id "{text}": give "ckpt://JOB/step-N" with the number of the step, or '
            '"ckpt://JOB/latest" to load the newest one, or the path of a folder'
        )
    return Id(job, int(found[1]) if found else None, bool(word))
