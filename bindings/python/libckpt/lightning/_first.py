"""First: what the Callback does before all other callbacks."""

from libckpt.lightning._framework import pl


class First(pl.Callback):
    """Some exchange the weights through `.data`, unseen by PyTorch's counters: an average for
    validation, and one at the end of training. Others save files."""

    def __init__(self, memory):
        self._memory = memory

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self._memory.is_behind_batch = True
        self._memory.hold_files()

    def on_validation_start(self, trainer, pl_module):
        self._memory.finish_capture()
        self._memory.release_files()

    def on_validation_end(self, trainer, pl_module):
        self._memory.hold_files()

    def on_train_epoch_end(self, trainer, pl_module):
        self._memory.finish_capture()
        self._memory.release_files()

    def on_train_end(self, trainer, pl_module):
        self._memory.finish_capture()
        self._memory.release_files()
