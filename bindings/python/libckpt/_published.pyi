from os import PathLike

class PublishedCheckpoint:
    path: str
    job: str
    step: int
    timeline: int
    world_size: int
    is_abandoned: bool
    created_unix_seconds: int
    metrics: dict[str, float]

class Published:
    checkpoints: list[PublishedCheckpoint]
    damage: list[str]
    history_lost: str

def list_published(path: str | PathLike[str]) -> Published: ...
