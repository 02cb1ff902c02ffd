"""Published: the checkpoints at a path, and which of them a restore may take."""

import dataclasses
import os

from libckpt import _native


@dataclasses.dataclass(frozen=True)
class PublishedCheckpoint:
    path: str
    job: str
    step: int
    timeline: int
    world_size: int  # The number of ranks that saved it.
    is_abandoned: bool  # By a restore to an older step: do not restore it.
    created_unix_seconds: int  # By the clock of its writer.
    metrics: dict[str, float]  # From its save, by rank 0.


@dataclasses.dataclass(frozen=True)
class Published:
    checkpoints: list[PublishedCheckpoint]  # Newest first; their files exist, unread.
    damage: list[str]  # A sentence for each damaged checkpoint or run.
    history_lost: str  # Why it is not known which are abandoned; empty: it is known.


def list_published(path: str | os.PathLike[str]) -> Published:
    """The checkpoints of the run whose directory the path is, or of all runs below it; the path of
    one checkpoint lists that one. Reads no tensors and needs no daemon. Raises NotFound without
    such a directory."""
    found, damage, history_lost = _native.published(os.fspath(path))
    return Published([PublishedCheckpoint(**each) for each in found], damage, history_lost)
