from libckpt import (  # Each is imported at its first use.
    accelerate as accelerate,
    dcp as dcp,
    deepspeed as deepspeed,
    jax as jax,
    levanter as levanter,
    lightning as lightning,
    megatron as megatron,
    torch as torch,
    torch_checkpointing as torch_checkpointing,
    torchft as torchft,
    torchtitan as torchtitan,
    transformers as transformers,
)
from libckpt._init import Options as Options, init as init
from libckpt._load import load_checkpoint as load_checkpoint
from libckpt._published import (
    Published as Published,
    PublishedCheckpoint as PublishedCheckpoint,
    list_published as list_published,
)
from libckpt.adapters.torch._members import TorchMember as TorchMember
from libckpt.core._restorer import Restored as Restored
from libckpt.core._tensors import TensorShape as TensorShape
from libckpt.errors import (
    Cancelled as Cancelled,
    CheckpointError as CheckpointError,
    Corruption as Corruption,
    Exhausted as Exhausted,
    InvalidArgument as InvalidArgument,
    NotFound as NotFound,
    StorageError as StorageError,
    Unavailable as Unavailable,
    Unsupported as Unsupported,
    VersionMismatch as VersionMismatch,
)
from libckpt.core._arrays import Array as Array
from libckpt.rng import RNG as RNG
from libckpt.session import Session as Session
from libckpt.ticket import Ticket as Ticket

__version__: str
