"""Programs about distributed tensors, in a fork that has all imports already.

one_rank.py PROGRAM: runs it in a group of its own, with a mesh of it.
one_rank.py --ranks SIZES SHAPE KINDS: what each of four ranks captures of a tensor, in a group that
only pretends to be one.
"""

import json
import os

import torch
import torch.distributed as dist
from dcp_layouts import warm_up
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import libckpt
from libckpt.core import _items

MAKERS = {"S0": Shard(0), "S1": Shard(1), "R": Replicate(), "P": Partial(),
          "SS0": _StridedShard(0, split_factor=2)}  # fmt: skip

warm_up()
torch.optim.AdamW([torch.zeros(1)])  # The first one imports a thousand modules.


def captured(rank, sizes, shape, kinds):
    """The part of the rank, its place, and all names that have one; or why it is refused."""
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    mesh = dist.init_device_mesh("cpu", tuple(sizes))
    placements = [MAKERS[kind] for kind in kinds]
    whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    if "P" in kinds:
        tensor = DTensor.from_local(whole, mesh, placements, run_check=False)
    else:
        tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    try:
        _, tensors, _ = _items.flatten({"w": tensor, "x": torch.zeros(2)})
        return [tensors["w"].tolist(), tensors.places["w"], sorted(tensors.places)]
    except libckpt.CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dist.destroy_process_group()


def main(program, *arguments):
    if program == "--ranks":
        for rank in range(4):
            print("captured", json.dumps(captured(rank, *map(json.loads, arguments))))
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = dist.init_device_mesh("cpu", (1,))

    def parameter(value):
        return torch.nn.Parameter(distribute_tensor(torch.full((3, 2), value), mesh, [Shard(0)]))

    known = {"mesh": mesh, "parameter": parameter, "libckpt": libckpt, "torch": torch,
             "distribute_tensor": distribute_tensor, "Shard": Shard, "DTensor": DTensor,
             "fully_shard": fully_shard}  # fmt: skip
    exec(program, known)
