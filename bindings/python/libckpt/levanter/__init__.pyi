import datetime
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

from typing_extensions import Unpack

from libckpt import Options
from libckpt.levanter._policy import CheckpointInterval as CheckpointInterval
from libckpt.session import Metrics, Source

__all__ = [
    "CheckpointInterval",
    "Checkpointer",
    "discover_latest_checkpoint",
    "initialize_from",
    "is_checkpoint_path",
    "load_checkpoint",
]

Path = str | PathLike[str]

class Checkpointer:
    def __init__(
        self,
        base_path: Path,
        save_interval: datetime.timedelta | None = None,
        step_policies: Iterable[CheckpointInterval] = (),
        *,
        temporary_base_path: Path | None = None,
        keep_params: bool = True,
        dt_now_injection: Callable[[], datetime.datetime] | None = None,
        delete_old_temp_checkpoints: bool = True,
        keep_last_temporary_checkpoints: int = 1,
        debug: Any = None,
        job: str | None = None,
        dir: Path | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    def on_step(
        self, *, tree: Any, step: int, force: bool = False, metrics: Metrics | None = None
    ) -> None: ...
    def load_or(
        self, state: Any, *, strict: bool = True, source: Source | None = None
    ) -> Any: ...
    def wait_until_finished(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...

def is_checkpoint_path(path: Path) -> bool: ...
def discover_latest_checkpoint(path: Path, max_step: int | None = None) -> str | None: ...
def load_checkpoint(
    state: Any,
    path: Path,
    discover_latest: bool = True,
    *,
    subpath: str | None = None,
    axis_mapping: None = None,
    mesh: None = None,
    allow_partial: bool = False,
    strict: bool = True,
) -> Any: ...
def initialize_from(model: Any, path: Path, *, subpath: str = "model") -> Any: ...
