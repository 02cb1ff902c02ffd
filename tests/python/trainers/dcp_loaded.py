"""dcp_loaded.py FOLDER WHOLE RANKS: ranks load an exported folder with stock torch, and compare.

Each rank asks for its rows of every tensor of WHOLE, a torch file. libckpt is not there.
"""

import os
import sys

import doors
import ports
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def whole_of(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def compare(loaded, expected):
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        found = whole_of(loaded[name])
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found, tensor), name


def main(folder, whole, ranks):
    ranks = int(ranks)
    if ranks > 1:
        doors.become_rank(ranks)
    expected = torch.load(whole)
    targets = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    if ranks > 1:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (ranks,))
        targets = {
            name: distribute_tensor(tensor, mesh, [Shard(0) if tensor.numel() else Replicate()])
            if tensor.dim() else tensor for name, tensor in targets.items()
        }  # fmt: skip
    dcp.load(targets, checkpoint_id=folder)
    compare(targets, expected)
    if ranks == 1:  # Torch's own tool, which has no state to ask for.
        converted = os.path.join(folder, "..", "converted.pt")
        dcp_to_torch_save(folder, converted)
        compare(torch.load(converted, weights_only=True), expected)
    else:
        ports.leave()
    assert not any(name.partition(".")[0] == "libckpt" for name in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
