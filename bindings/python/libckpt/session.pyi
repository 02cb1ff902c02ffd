from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Literal, SupportsFloat, TypeVar

from libckpt.core._arrays import Array
from libckpt.core._ranks import Ranks
from libckpt.core._restorer import Restored
from libckpt.ticket import Level, Ticket

Items = Mapping[str, Any]
Source = Literal["memory", "storage"]
ItemsOrFunction = Items | Callable[[], Items]
ArraysOrFunction = Iterable[Array] | Callable[[], Iterable[Array]]
Metrics = Callable[[], Mapping[str, SupportsFloat]] | Mapping[str, SupportsFloat]
Default = TypeVar("Default")

class Session:
    job: str
    dir: str | None
    rank: int
    world_size: int
    ranks: Ranks
    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        raise_on_error: bool = False,
        allow_pickle: bool = False,
        debug: bool = False,
    ) -> None: ...
    def guard(self, *optimizers: Any) -> Session: ...
    def save_checkpoint_if_needed(
        self,
        step: int,
        items: ItemsOrFunction,
        *,
        arrays: ArraysOrFunction = (),
        metrics: Metrics | None = None,
        common: Iterable[str] = (),
    ) -> Ticket: ...
    def save(
        self,
        step: int,
        items: ItemsOrFunction,
        wait: float = 0,
        *,
        arrays: ArraysOrFunction = (),
        metrics: Metrics | None = None,
        common: Iterable[str] = (),
    ) -> Ticket: ...
    def finish_capture(self) -> None: ...
    def agree(self, what: str, error: Exception | None) -> None: ...
    def prepare(self, items: Items, *, arrays: Iterable[Array] = ()) -> None: ...
    def restore(
        self,
        into: Items | None = None,
        step: int | None = None,
        strict: bool = True,
        *,
        arrays: Iterable[Array | str] = (),
        path: str | PathLike[str] | None = None,
        renamed: Mapping[str, str] | None = None,
        shapes_only: bool = False,
        source: Source | None = None,
    ) -> Restored: ...
    def initialize_from(
        self,
        path: str | PathLike[str],
        into: Items,
        strict: bool = True,
        *,
        arrays: Iterable[Array | str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> Restored: ...
    def start_fresh(self) -> None: ...
    def restore_or(
        self,
        into: Items,
        default: Default | None = None,
        strict: bool = True,
        *,
        step: int | None = None,
        arrays: Iterable[Array | str] = (),
        path: str | PathLike[str] | None = None,
        renamed: Mapping[str, str] | None = None,
        source: Source | None = None,
    ) -> int | Default | None: ...
    @property
    def latest(self) -> int | None: ...
    def wait(self, step: int, level: Level, deadline: float = 60.0) -> None: ...
    def flush(self, deadline: float = 60.0) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def counts(self) -> dict[str, Any]: ...
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
