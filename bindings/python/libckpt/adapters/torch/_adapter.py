"""The adapter for torch: answers to the core, from the modules beside this one."""

import logging

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from libckpt.adapters.torch import _digest, _group, _guard, _guarded_memory, _members, _modules
from libckpt.adapters.torch import _optimizers, _owners, _tensors
from libckpt.core import _frameworks

logger = logging.getLogger("libckpt")


class Torch(_frameworks.Adapter):
    tensors = _tensors.Tensors()
    Guard = _guard.Guard
    Digests = _digest.Digests

    owners = _owners.Owners
    optimizer_of = staticmethod(_guard.optimizer_of)
    plain_name = staticmethod(_modules.without_wrappers)
    by_numbers = staticmethod(_optimizers.by_numbers)
    group = staticmethod(_group.group_of)
    standing = staticmethod(_group.standing)
    flat_bytes = staticmethod(_digest.flat_bytes)
    load_archive = staticmethod(_members.load)

    def parts_of(self, value):
        if type(value) is torch.Size:
            return "torch.Size", list(value)
        if isinstance(value, torch.device):
            return "torch.device", str(value)
        return ("torch.dtype", str(value)) if isinstance(value, torch.dtype) else None

    def make(self, name, parts):
        if name == "torch.dtype":
            return _tensors.type_of(parts.removeprefix("torch."))
        return {"torch.Size": torch.Size, "torch.device": torch.device}[name](parts)

    def fill_object(self, item, value):
        is_generator = isinstance(item, torch.Generator)
        if is_generator:
            item.set_state(value.get_state())
        return is_generator

    def watch_steps(self, call):
        return register_optimizer_step_post_hook(lambda *_: call()).remove

    def state_bytes(self, items, guarded):
        found = [*(reference() for reference in guarded), *filter(_owners.is_optimizer, items)]
        return _guarded_memory.state_bytes({id(each): each for each in found}.values())

    def exchange(self):
        return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None), torch.Tensor

    def current_streams(self, gpus):
        return [torch.cuda.current_stream(gpu) for gpu in gpus]

    def is_recording_graph(self):
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    # --- random generators

    def rng_state(self):
        state = {"torch": torch.get_rng_state()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def seed(self, seed):
        torch.manual_seed(seed)

    def load_rng(self, state):
        """States of more GPUs than there are here are left out."""
        torch.set_rng_state(state["torch"])
        states = state.get("cuda", ())
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for gpu, part in enumerate(states[:count]):
            torch.cuda.set_rng_state(part, gpu)
        if len(states) > count:
            logger.warning(
                "libckpt: restore: the random generators of %d GPU(s) were saved and %d are here: "
                "the others are left out",
                len(states), count,
            )  # fmt: skip

    def check_rng(self, state):
        parts = [(state["torch"], torch.get_rng_state())]
        if torch.cuda.is_available():
            wanted = torch.cuda.get_rng_state()
            parts += [(part, wanted) for part in state.get("cuda", ())[: torch.cuda.device_count()]]
        for part, wanted in parts:
            shape = getattr(part, "shape", None) or part.node["shape"]
            if list(shape) != list(wanted.shape):
                raise ValueError(
                    f"the state of a generator of torch has {list(shape)} bytes there and "
                    f"{list(wanted.shape)} here"
                )


ADAPTER = Torch()
