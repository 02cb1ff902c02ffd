"""Megatron-core wants GPUs; with these modes it runs on CPUs, over gloo."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode

_type = torch.Tensor.type


class CudaToCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        if function is torch.Tensor.cuda:
            return args[0]
        found = function(*args, **kwargs)
        if function is _type and isinstance(found, str):  # Megatron compares with GPU types.
            found = found.replace("torch.", "torch.cuda.", 1)
        return found


def enter():
    """For the rest of the process."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_, **__: None
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    CudaToCpu().__enter__()
