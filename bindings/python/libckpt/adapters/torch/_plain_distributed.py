"""Plain distributed: a DTensor as its local tensor and plain data, and back.

A DTensor lies on the mesh of its own process group. The mesh of another group is the same in all
but its process groups, which loading a state into a model does not use.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils._pytree import tree_map, tree_map_only

from libckpt import errors

MARK = "libckpt.distributed"


def to_plain(tree):
    return tree_map_only(DTensor, _plain, tree)


def from_plain(tree):
    return tree_map(lambda leaf: _made(leaf) if _is_plain(leaf) else leaf, tree, is_leaf=_is_plain)


def _is_plain(value):
    return isinstance(value, dict) and MARK in value


def _plain(tensor):
    mesh = tensor.device_mesh
    return {
        MARK: {
            "device": mesh.device_type,
            "mesh": mesh.mesh.tolist(),
            "names": mesh.mesh_dim_names,
            "placements": [_word(placement) for placement in tensor.placements],
            "shape": tuple(tensor.shape),
            "stride": tuple(tensor.stride()),
        },
        "local": tensor._local_tensor.detach(),
    }


def _word(placement):
    """The dimension that is divided; None: there is a copy on each rank."""
    if type(placement) is Replicate:
        return None
    if type(placement) is Shard:
        return placement.dim
    raise errors.Unsupported(f"transfer: a distributed tensor is placed as {placement}")


def _made(plain):
    facts = plain[MARK]
    mesh = DeviceMesh(facts["device"], facts["mesh"], mesh_dim_names=facts["names"],
                      _init_backend=False, _rank=dist.get_rank())  # fmt: skip
    placements = [Replicate() if dim is None else Shard(dim) for dim in facts["placements"]]
    local = plain["local"]
    whole = TensorMeta(torch.Size(facts["shape"]), facts["stride"], local.dtype)
    # Not `from_local`, and above not `to_local`: on a rank outside of the mesh they have nothing.
    return DTensor(local, DTensorSpec(mesh, tuple(placements), whole), requires_grad=False)
