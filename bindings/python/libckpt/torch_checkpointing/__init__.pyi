from typing import Any

from torch_checkpointing.storage.filesystem import (
    LocalFileSystemStorage,
    LocalFileSystemStorageConfig,
)

__all__ = ["Storage", "StorageConfig"]

class StorageConfig(LocalFileSystemStorageConfig):
    directory: str
    temp_dir_prefix: str
    options: dict[str, Any]

    def __init__(
        self,
        directory: str,
        temp_dir_prefix: str = "tmp_",
        use_direct_io: bool = True,
        **options: Any,
    ) -> None: ...

class Storage(LocalFileSystemStorage):
    def __init__(self, config: StorageConfig) -> None: ...
