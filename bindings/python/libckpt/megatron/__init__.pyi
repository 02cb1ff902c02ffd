from os import PathLike
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from libckpt import Options
from libckpt.megatron._easy import EasyCkpt
from libckpt.session import Metrics, Source

__all__ = [
    "LocalCheckpointManager",
    "initialize_easyckpt",
    "load_checkpoint",
    "save_checkpoint_if_needed",
]

def initialize_easyckpt(
    save_mem_interval: int | str,
    save_storage_interval: int,
    max_ckpt_num: int,
    log_file_path: str | PathLike[str] | None = None,
    *,
    job: str | None = None,
    save_dir: str | PathLike[str] | None = None,
    load_dir: str | PathLike[str] | None = None,
    dir: str | PathLike[str] | None = None,
    ckpt_format: str = "torch",
    **options: Unpack[Options],
) -> EasyCkpt: ...
def save_checkpoint_if_needed(
    iteration: int,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float = 0,
    *,
    metrics: Metrics | None = None,
) -> None: ...
def load_checkpoint(
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    load_arg: str = "load",
    strict: bool = True,
    concat: bool = False,
    *,
    source: Source | None = None,
    **more: Any,
) -> int | tuple[int, float]: ...
def current() -> EasyCkpt: ...

class LocalCheckpointManager:
    def __init__(
        self,
        root_local_ckpt_dir: str | PathLike[str],
        session_id: str = "",
        repl_strategy: Any = None,
        **options: Unpack[Options],
    ) -> None: ...
    session_id: str
    repl_strategy: Any
    latest_iteration: int
    @property
    def session(self) -> Any: ...
    @property
    def local_ckpt_dir(self) -> Path: ...
    def save(self, state_dict: Any, iteration: int, is_async: bool = False) -> Any | None: ...
    def find_latest(self) -> int: ...
    def load(self) -> tuple[Any, tuple[int, int, str]]: ...
