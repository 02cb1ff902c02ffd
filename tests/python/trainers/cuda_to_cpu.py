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
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):  # Without Transformer Engine it is not defined.
        moe_utils.te_general_gemm = None
    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    CudaToCpu().__enter__()


# With torch's AdamW, Megatron's own load wants more: with that of Apex or Transformer Engine, which
# want GPUs, it does not.


def prepare_to_load(optimizer):
    inner = optimizer.optimizer
    for group in inner.param_groups:
        for parameter in group["params"]:
            inner.state[parameter] = {"step": torch.tensor(0.0),
                                      "exp_avg": torch.zeros_like(parameter),
                                      "exp_avg_sq": torch.zeros_like(parameter)}  # fmt: skip

    def give(parameter, tensors):
        group, at = optimizer.model_param_group_index_map[parameter]
        main = inner.param_groups[group]["params"][at]
        with torch.no_grad():
            for key, tensor in {"param": main, **inner.state[main]}.items():
                if key in tensors:
                    tensor.copy_(tensors[key])

    optimizer._set_main_param_and_optimizer_states = give


def finish_load(optimizer):
    """All parameters have one tensor that counts their steps."""
    for state in optimizer.optimizer.state.values():
        state["step"] = state["step"].clone()
