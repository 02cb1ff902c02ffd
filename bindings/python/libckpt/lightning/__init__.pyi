from libckpt.lightning._callback import Callback as Callback
from libckpt.lightning._checkpoint_io import NEWEST as NEWEST
from libckpt.lightning._checkpoint_io import CheckpointIO as CheckpointIO

__all__ = ["NEWEST", "Callback", "CheckpointIO"]
