"""local: what a local checkpoint with a copy on a peer holds two ranks, against that of NVRx.

The same state dict goes to both managers by the same call. NVRx gathers the tensors of both ranks
inside of its save and writes both to a RAM disk; ours captures, and the daemons exchange copies
behind the call. They are waited for between the measurements, and not counted.
"""

import itertools
import shutil
import sys
import warnings

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.local import basic_state_dict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers import local_manager
from nvidia_resiliency_ext.checkpointing.local.replication import strategies
from torch.overrides import TorchFunctionMode

import libckpt.megatron
import two_ranks
from harness import Bar, Harness, seconds_of

TENSOR_BYTES = 16 << 20
RAM_DISK = "/dev/shm"


class CudaToCpu(TorchFunctionMode):
    """NVRx names a GPU where there is none."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return args[0] if function is torch.Tensor.cuda else function(*args, **kwargs)


class OnCpu(basic_state_dict.BasicTensorAwareStateDict):
    def __init__(self, state_dict):  # That of NVRx asserts that each tensor is on a GPU.
        self.state_dict, self._is_hollow = state_dict, False


class Side:
    def __init__(self, manager, count):
        self._manager, self._numbers = manager, itertools.count(1)
        self._tensors = [torch.rand(TENSOR_BYTES // 4) for _ in range(count)]

    def save(self):
        number = next(self._numbers)
        for tensor in self._tensors:
            tensor[0] += 1
        state = OnCpu({str(index): each for index, each in enumerate(self._tensors)})
        dist.barrier()
        held = seconds_of(lambda: self._manager.save(state, number))
        self.settle(number)
        dist.barrier()
        return held

    def settle(self, number):
        pass


class Ours(Side):
    def settle(self, number):
        self._manager.session.wait(number, "replicated", two_ranks.WAIT)


def main():
    warnings.simplefilter("ignore")
    harness = Harness("local", __doc__)
    scratch = two_ranks.start(of_two_nodes=True)
    dist.init_process_group("gloo")
    torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
    CudaToCpu().__enter__()
    count = max(1, harness.bytes // TENSOR_BYTES)
    ours = libckpt.megatron.LocalCheckpointManager(scratch / "ours", replicas=2,
                                                   raise_on_error=True)  # fmt: skip
    copies = strategies.CliqueReplicationStrategy.from_replication_params(1, 2)
    stock = local_manager.LocalCheckpointManager(f"{RAM_DISK}/{scratch.name}",
                                                 repl_strategy=copies)  # fmt: skip
    harness.compare(
        Bar("B29", "held: NVRx's local checkpoint with a copy on the peer / ours", 5, 2),
        Ours(ours, count).save, Side(stock, count).save,
    )  # fmt: skip
    ours.session.close()
    dist.barrier()
    is_first = dist.get_rank() == 0
    if is_first:
        shutil.rmtree(f"{RAM_DISK}/{scratch.name}")
    dist.destroy_process_group()
    return harness.finish() if is_first else 0


if __name__ == "__main__":
    sys.exit(main())
