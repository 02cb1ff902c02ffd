from os import PathLike
from typing import TypeVar

import transformers
from typing_extensions import Unpack

from libckpt import Options
from libckpt.core._resuming import NEWEST as NEWEST

__all__ = ["NEWEST", "Callback", "TrainerWrapper", "finish_capture"]

Path = str | PathLike[str]
AnyTrainer = TypeVar("AnyTrainer", bound=transformers.Trainer)

def TrainerWrapper(
    trainer: AnyTrainer,
    *,
    job: str | None = None,
    dir: Path | None = None,
    overlap: bool = True,
    **options: Unpack[Options],
) -> AnyTrainer: ...
def finish_capture(trainer: transformers.Trainer) -> None: ...

class Callback(transformers.TrainerCallback):
    def __init__(
        self,
        *,
        job: str | None = None,
        dir: Path | None = None,
        overlap: bool = True,
        **options: Unpack[Options],
    ) -> None: ...
    def finish_capture(self) -> None: ...
    def attach(self, trainer: transformers.Trainer) -> None: ...
