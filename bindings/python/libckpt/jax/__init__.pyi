from os import PathLike
from types import TracebackType
from typing import Any, Self

from typing_extensions import Unpack

from libckpt import Options, Session, Ticket
from libckpt.jax._restore import Restored as Restored
from libckpt.session import Metrics, Source

__all__ = ["Checkpointer", "Restored", "load"]

Path = str | PathLike[str]

class Checkpointer:
    session: Session
    def __init__(self, job: str | None = None, dir: Path | None = None, **options: Unpack[Options]) -> None: ...
    def prepare(self, tree: Any) -> None: ...
    def save_checkpoint_if_needed(
        self, step: int, tree: Any, *, metrics: Metrics | None = None
    ) -> Ticket: ...
    def save(
        self, step: int, tree: Any, wait: float = 0, *, metrics: Metrics | None = None
    ) -> Ticket: ...
    def restore(
        self, like: Any, step: int | None = None, *, strict: bool = True,
        source: Source | None = None,
    ) -> Restored: ...
    def restore_or(
        self, like: Any, default: int = 0, *, strict: bool = True,
        source: Source | None = None,
    ) -> tuple[int, Any]: ...
    @property
    def latest(self) -> int | None: ...
    def wait_until_finished(self, deadline: float = 60.0) -> None: ...
    def close(self, deadline: float = 60.0) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def load(path: Path, like: Any, *, strict: bool = True) -> Any: ...
