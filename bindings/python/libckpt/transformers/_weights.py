"""Trainer weights: takes what Transformers is about to write as a safetensors file.

Transformers has no method for just the writing: `save_pretrained` decides what the file holds, and
calls a function of its module for the bytes. So that function is another one while the Trainer's
`_save` runs, on its thread; other weights go to the one that was there.
"""

import contextlib
import importlib
import os
import pathlib
import threading

import torch

from libckpt.adapters.torch._safetensors import METADATA, is_storable

# The writers for a PreTrainedModel, and for any other module.
WRITERS = (("transformers.modeling_utils", "safe_save_file"), ("safetensors.torch", "save_file"))


class Weights:
    """The tensors of one file, and objects that are files beside it in the folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.file = None  # Its name.
        self.tensors = {}
        self.objects = {}  # By name.

    def take(self, tensors, path, metadata=None):
        """Whether the file is this one's; then its tensors are held until they are captured."""
        path = pathlib.Path(path)
        is_one = self.file is None and path.parent == self.folder and metadata == METADATA
        if not is_one or not is_storable(tensors):
            return False
        self.file, self.tensors = path.name, dict(tensors)
        return True

    def move_to(self, folder):
        """The folder is another one from now on."""
        os.rename(self.folder, folder)
        self.folder = folder

    def write(self):
        """As Transformers would have."""
        from safetensors.torch import save_file

        for name, content in self.objects.items():
            torch.save(content, self.folder / name)
        if self.file is not None:
            save_file(self.tensors, self.folder / self.file, metadata=METADATA)


@contextlib.contextmanager
def collected(weights):
    """While it lasts, `weights` may take what this thread writes as a safetensors file."""
    thread = threading.get_ident()

    def writer(stock):
        def write(tensors, filename, metadata=None, *arguments, **options):
            is_ours = threading.get_ident() == thread and not arguments and not options
            if not is_ours or not weights.take(tensors, filename, metadata):
                stock(tensors, filename, metadata, *arguments, **options)

        return write

    with contextlib.ExitStack() as stack:
        for module, name in WRITERS:
            module = importlib.import_module(module)
            if hasattr(module, name):  # Else this version writes for itself.
                stack.enter_context(replaced(module, **{name: writer(getattr(module, name))}))
        yield


@contextlib.contextmanager
def replaced(owner, **functions):
    """For a while the module, or the object, has these functions of its own."""
    before = {name: vars(owner)[name] for name in functions if name in vars(owner)}
    vars(owner).update(functions)
    try:
        yield
    finally:
        for name in functions:
            del vars(owner)[name]
        vars(owner).update(before)
