from os import PathLike

import accelerate
from typing_extensions import Unpack

from libckpt import Options
from libckpt.session import Metrics, Source
from libckpt.ticket import Ticket

__all__ = ["State", "attach"]

Path = str | PathLike[str]

def attach(
    accelerator: accelerate.Accelerator,
    *,
    job: str | None = None,
    dir: Path | None = None,
    overlap: bool = True,
    **options: Unpack[Options],
) -> State: ...

class State:
    def __init__(
        self, accelerator: accelerate.Accelerator, memory: object = None, folders: object = None
    ) -> None: ...
    def capture(self, step: int, *, metrics: Metrics | None = None) -> Ticket | None: ...
    def finish_capture(self) -> None: ...
    def resume(self, *, source: Source | None = None) -> int: ...
    def settle(self) -> None: ...
