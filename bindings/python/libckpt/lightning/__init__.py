"""libckpt for Lightning: a plugin, a callback, and a word for where to go on.

    trainer = Trainer(plugins=[libckpt.lightning.CheckpointIO()],
                      callbacks=[libckpt.lightning.Callback()])
    trainer.fit(model, ckpt_path=libckpt.lightning.NEWEST)

The plugin: files of `ModelCheckpoint` are captured in memory and appear whole; training does not
wait for storage. The callback: every optimizer step is captured in memory that outlives the
process. NEWEST resumes from the newest of memory and files.
"""

from libckpt.lightning._callback import Callback
from libckpt.lightning._checkpoint_io import NEWEST, CheckpointIO

__all__ = ["NEWEST", "Callback", "CheckpointIO"]
