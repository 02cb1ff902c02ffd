from typing import Any, TypeVar

import transformers

__all__ = ["Callback", "TrainerWrapper"]

AnyTrainer = TypeVar("AnyTrainer", bound=transformers.Trainer)

def TrainerWrapper(trainer: AnyTrainer, **options: Any) -> AnyTrainer: ...

class Callback(transformers.TrainerCallback):
    def __init__(self, **options: Any) -> None: ...
    def attach(self, trainer: transformers.Trainer) -> None: ...
