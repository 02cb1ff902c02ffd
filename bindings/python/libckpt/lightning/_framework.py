"""Lightning, under whichever of its two names the program has imported."""

import sys

if "lightning" not in sys.modules and "pytorch_lightning" in sys.modules:
    import pytorch_lightning as pl
    from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
else:
    import lightning.pytorch as pl
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

__all__ = ["TorchCheckpointIO", "pl"]
