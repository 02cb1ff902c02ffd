from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeVar

from libckpt._restore import Restored
from libckpt.ticket import Ticket

Level = Literal["captured", "replicated", "committed", "durable"]
Items = Mapping[str, Any]
Default = TypeVar("Default")

def init(
    job: str,
    dir: str | PathLike[str] | None = None,
    *,
    max_ckpt_num: int | None = None,
    keep: int | None = None,
    raise_on_error: bool = False,
    allow_pickle: bool = True,
    debug: bool | None = None,
    **options: Any,
) -> Session: ...

class Session:
    job: str
    dir: str | None
    rank: int
    world_size: int
    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        raise_on_error: bool = False,
        allow_pickle: bool = True,
        debug: bool = False,
    ) -> None: ...
    def guard(self, *optimizers: Any) -> Session: ...
    def save_checkpoint_if_needed(self, step: int, items: Items) -> Ticket: ...
    def save(self, step: int, items: Items) -> Ticket: ...
    def finish_capture(self) -> None: ...
    def prepare(self, items: Items) -> None: ...
    def restore(
        self, into: Items | None = None, step: int | None = None, strict: bool = True
    ) -> Restored: ...
    def start_fresh(self) -> None: ...
    def restore_or(
        self, into: Items, default: Default | None = None, strict: bool = True
    ) -> int | Default | None: ...
    @property
    def latest(self) -> int | None: ...
    def wait(self, step: int, level: Level, deadline: float = 60.0) -> None: ...
    def flush(self, deadline: float = 60.0) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def close(self, deadline: float = 60.0) -> None: ...
    def abandon(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    def __enter__(self) -> Session: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
