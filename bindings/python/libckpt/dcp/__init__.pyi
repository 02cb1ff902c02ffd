from os import PathLike

from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter
from typing_extensions import Unpack

from libckpt import Options
from libckpt.session import Session

__all__ = ["Storage"]

Id = str | PathLike[str]

class Storage(StorageWriter, StorageReader, AsyncStager):
    def __init__(
        self,
        checkpoint_id: Id | None = None,
        *,
        dir: str | PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    def find(self, checkpoint_id: Id | None = None) -> int | None: ...
    def session(self, checkpoint_id: Id | None = None) -> Session: ...
    @property
    def checkpoint_id(self) -> str: ...
