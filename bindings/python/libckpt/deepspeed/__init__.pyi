from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, TypeVar

from typing_extensions import Unpack

from libckpt import Options
from libckpt.session import Metrics, Source

__all__ = ["accumulation_for", "attach", "close", "detach", "resume", "wait", "write_universal"]

Path = str | PathLike[str]
ClientState = Mapping[str, Any]
Engine = TypeVar("Engine")

def attach(
    engine: Engine,
    *,
    job: str | None = None,
    dir: Path | None = None,
    client_state: ClientState | Callable[[], ClientState] | None = None,
    metrics: Metrics | None = None,
    **options: Unpack[Options],
) -> Engine: ...
def resume(engine: Any, *, source: Source | None = None) -> int | None: ...
def write_universal(
    engine: Any, dir: Path, tag: str | None = None, client_state: ClientState | None = None
) -> None: ...
def wait(engine: Any) -> None: ...
def close(engine: Any) -> None: ...
def detach(engine: Any) -> None: ...
def accumulation_for(global_batch: int, micro_batch: int, world_size: int) -> int: ...
