from datetime import timedelta
from os import PathLike
from typing import TypeVar

from torchft.checkpointing import CheckpointTransport

__all__ = ["Transport"]

T = TypeVar("T")

class Transport(CheckpointTransport[T]):
    def __init__(
        self,
        name: str,
        *,
        timeout: timedelta | None = None,
        num_chunks: int = 0,
        allow_pickle: bool = False,
        node: str | None = None,
        interface: str | None = None,
        port: int | None = None,
        runtime_dir: str | PathLike[str] | None = None,
        memory_budget: int | str | None = None,
        daemon_path: str | PathLike[str] | None = None,
    ) -> None: ...
