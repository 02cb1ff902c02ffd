from collections.abc import Callable, Sequence
from inspect import Parameter
from os import PathLike
from typing import Any, TypedDict, TypeVar

from typing_extensions import Unpack

from libckpt.session import Session

Path = str | PathLike[str]
Bytes = int | str  # 64 << 30, or "64GiB".
Seconds = float | str  # 2.5, or "2500ms".
Interval = int | str  # Steps, or a time as "60s".
Function = TypeVar("Function", bound=Callable[..., Any])

KEYWORDS: dict[str, Parameter]

class Options(TypedDict, total=False):
    save_mem_interval: Interval | None
    save_storage_interval: Interval | None
    max_ckpt_num: int | None
    keep: int | None
    keep_every: int | str | Sequence[Any] | None
    keep_best: int | None
    best_metric: str | None
    best_mode: str | None
    compression: str | None
    raise_on_error: bool | None
    allow_pickle: bool | None
    debug: bool | None
    memory_budget: Bytes | None
    replicas: int | None
    own_slots: int | None
    blob_capacity: Bytes | None
    copy_threads: int | None
    gpu_copy_rate: Bytes | None
    gpu_gap: str | None
    gpu_gather: str | None
    gpu_check: bool | None
    flush_rate: Bytes | None
    replica_rate: Bytes | None
    skip_unchanged: bool | None
    yield_: str | None
    checksum_in_copy: bool | None
    compare_copies: bool | None
    rank: int | None
    world_size: int | None
    nodes: Sequence[str] | str | None
    node: str | None
    incarnation: int | None
    secret_file: Path | None
    interface: str | None
    port: int | None
    runtime_dir: Path | None
    daemon_path: Path | None
    embedded: bool | None
    log_file_path: Path | None
    disable: bool | None
    open_deadline: Seconds | None
    restore_deadline: Seconds | None

def init(
    job: str | None = None,
    dir: Path | None = None,
    *,
    guard: Any = None,
    **options: Unpack[Options],
) -> Session: ...
def check(job: str | None = None, **options: Any) -> None: ...
def with_keywords(function: Function) -> Function: ...
