from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from libckpt.core._arrays import Array
from libckpt.core._restorer import Restored

def load_checkpoint(
    path: str | PathLike[str],
    into: Mapping[str, Any] | None = None,
    strict: bool = True,
    *,
    arrays: Iterable[Array | str] = (),
    renamed: Mapping[str, str] | None = None,
    shapes_only: bool = False,
    allow_pickle: bool = False,
) -> Restored: ...
