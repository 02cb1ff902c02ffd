"""Errors: one class for each Errc of the library, named after the reaction that it asks for."""


class CheckpointError(Exception):
    """The base of all."""


class InvalidArgument(CheckpointError, ValueError):
    """The request must be changed."""


class NotFound(CheckpointError, LookupError):
    """There is no such thing; often the normal first start."""


class Corruption(CheckpointError):
    """Bytes failed verification."""


class StorageError(CheckpointError, OSError):
    """Storage, network or kernel refused."""


class Unavailable(CheckpointError, TimeoutError):
    """Not now: try again later."""


class Exhausted(CheckpointError, MemoryError):
    """A named limit was reached."""


class Cancelled(CheckpointError):
    """The operation was ended from our side."""


class Unsupported(CheckpointError, NotImplementedError):
    """This machine, this version or this type cannot do it."""


class VersionMismatch(CheckpointError):
    """The other side, or the file, speaks another version."""
