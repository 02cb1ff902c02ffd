"""Safetensors: which tensors a step can hold as the safetensors file that they are to become."""

import torch

from libckpt.adapters.torch._tensors import TYPE_NAMES, text_of

METADATA = {"format": "pt"}  # As the libraries of Hugging Face write it.


def is_storable(tensors):
    """Whether the file would be the same, bytes and names; ties are for safetensors to refuse."""
    addresses = [tensor.data_ptr() for tensor in tensors.values() if tensor.nbytes > 0]
    return len(set(addresses)) == len(addresses) and all(
        "//" not in name
        and not name.startswith("libckpt.")
        and isinstance(tensor, torch.Tensor)
        and text_of(tensor.dtype) in TYPE_NAMES
        and tensor.is_contiguous()
        and tensor.device.type in ("cpu", "cuda")
        for name, tensor in tensors.items()
    )
