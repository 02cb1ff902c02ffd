from dataclasses import dataclass
from typing import Any

from torchtitan.components.checkpointer.dcp import CheckpointManager as _Stock

__all__ = ["CheckpointManager"]

class CheckpointManager(_Stock):
    @dataclass(kw_only=True, slots=True)
    class Config(_Stock.Config):
        job: str = ""
        save_mem_interval: int | None = None
        replicas: int | None = None
        source: str = ""

    def __init__(self, config: Config, **given: Any) -> None: ...
