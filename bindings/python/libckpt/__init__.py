"""libckpt: a training job's newest state, in memory that outlives the job.

    session = libckpt.init("my-run", dir="checkpoints").guard(optimizer)
    items = {"model": model, "optimizer": optimizer, "rng": libckpt.RNG(), "progress": progress}
    start = session.restore_or(items, default=0)
    for step in range(start + 1, steps + 1):
        train_one_step()
        if step < steps:
            session.save_checkpoint_if_needed(step, items)
        else:  # It waits for memory: no later step replaces the last one.
            session.save(step, items, wait=60)
    session.close()

No framework is imported before one of its objects, or the module named after it, is used:
`libckpt.transformers` needs no import of its own.
"""

import importlib

import libckpt.adapters
from libckpt.errors import (
    Cancelled,
    CheckpointError,
    Corruption,
    Exhausted,
    InvalidArgument,
    NotFound,
    StorageError,
    Unavailable,
    Unsupported,
    VersionMismatch,
)
from libckpt._init import Options, init
from libckpt._load import load_checkpoint
from libckpt._published import Published, PublishedCheckpoint, list_published
from libckpt.adapters.torch._members import TorchMember
from libckpt.core._arrays import Array
from libckpt.core._restorer import Restored
from libckpt.core._tensors import TensorShape
from libckpt.rng import RNG
from libckpt.session import Session
from libckpt.ticket import Ticket

__version__ = "0.1.0"
_DOORS = ("accelerate", "dcp", "deepspeed", "jax", "levanter", "lightning", "megatron", "torch",
          "torch_checkpointing", "torchft", "torchtitan", "transformers")  # fmt: skip
__all__ = [
    "RNG",
    "Array",
    "Cancelled",
    "CheckpointError",
    "Corruption",
    "Exhausted",
    "InvalidArgument",
    "NotFound",
    "Published",
    "PublishedCheckpoint",
    "Restored",
    "Session",
    "StorageError",
    "TensorShape",
    "Ticket",
    "TorchMember",
    "Unavailable",
    "Unsupported",
    "VersionMismatch",
    "init",
    "list_published",
    "load_checkpoint",
]


def __getattr__(name):
    """A door, when it is first used."""
    if name in _DOORS:
        return importlib.import_module(f"libckpt.{name}")
    raise AttributeError(f"module 'libckpt' has no attribute '{name}'")
