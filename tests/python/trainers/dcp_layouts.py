"""Ranks that save tensors in one layout with torch.distributed.checkpoint, and load them in others.

dcp_layouts.py STORAGE SPECS: JSON. The options of libckpt.dcp.Storage, or null for stock DCP, and
a list of [save or load, sizes of the mesh, placements, checkpoint_id]. Each is done by ranks of its
own, and told by a line: "done 0", or "failed 0".
"""

import json
import os
import traceback

import doors
import ports
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

PLACEMENTS = {"S0": Shard(0), "S1": Shard(1), "R": Replicate(),
              "SS0": _StridedShard(0, split_factor=2)}  # fmt: skip
SHAPES = [(9, 7), (3, 2), (16, 5), (1, 4), (0, 3), (6, 5), (7, 3)]
# Even, uneven, and empty on some ranks or all.
TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fnuz, torch.float32,
         torch.float8_e4m3fn, torch.float8_e5m2]  # fmt: skip


def warm_up():
    """The imports of the first distributed tensor take seconds: before any fork."""
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    mesh = dist.init_device_mesh("cpu", (1,))
    torch.zeros_like(distribute_tensor(torch.ones(2), mesh, [Shard(0)], src_data_rank=None))
    dist.destroy_process_group()


def whole(number):
    count = torch.Size(SHAPES[number]).numel()
    return (torch.arange(count) % 16).reshape(SHAPES[number]).to(TYPES[number])


def make(mesh, placements, is_saved):
    """The saved state, or the same without any of its values."""
    tensors = {}
    for number in range(len(SHAPES)):
        made = distribute_tensor(whole(number), mesh, placements, src_data_rank=None)
        if not is_saved:
            made.to_local().zero_()
        tensors[f"w{number}"] = made
    state = {"model": tensors, "plain": torch.full((3,), 5.0), "scalar": torch.tensor(2.5),
             "columns": torch.arange(12.0).reshape(3, 4).t(),
             "step": 17, "list": [1, 2.5, "x", None], "nested": {"deep": [(1, 2), {"a": True}]},
             "object": complex, "long": "x" * 100_000}  # fmt: skip
    if is_saved:
        return state
    zeros = {name: torch.zeros_like(state[name]) for name in ("plain", "scalar", "columns")}
    nothing = {"step": 0, "list": [0, 0, "", 0], "object": None, "long": ""}
    return {**state, **zeros, **nothing, "nested": {"deep": [(0, 0), {"a": False}]}}


def check(found, expected):
    for name, tensor in found["model"].items():
        local, wanted = tensor.to_local(), expected["model"][name].to_local()
        assert local.dtype == wanted.dtype
        assert torch.equal(local.view(torch.uint8), wanted.view(torch.uint8)), name
    for name in ("plain", "scalar", "columns"):
        assert torch.equal(found[name], expected[name]), name
    for name in ("step", "list", "nested", "object", "long"):
        assert found[name] == expected[name], (name, found[name])


def work(storage, what, sizes, kinds, checkpoint_id):
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", tuple(sizes))
    placements = [PLACEMENTS[kind] for kind in kinds]
    option, given = ("storage_writer" if what == "save" else "storage_reader"), {}
    if storage is None:
        doors.uninstall()
    else:
        import libckpt.dcp

        given[option] = libckpt.dcp.Storage(raise_on_error=True, **storage)
    state = make(mesh, placements, what == "save")
    call = dcp.save if what == "save" else dcp.load
    call(state, checkpoint_id=checkpoint_id, **given)
    if what == "load":
        check(state, make(mesh, placements, True))
    if checkpoint_id.startswith("ckpt:"):
        session = given[option].session(checkpoint_id)
        if what == "save" and session.dir:
            session.close()
        session.abandon()
    ports.leave()


def main(storage, specs):
    warm_up()
    for number, spec in enumerate(json.loads(specs)):
        world = torch.Size(spec[1]).numel()
        reserved = ports.reserve()
        processes = []
        for rank in range(world):
            process = os.fork()
            if process == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                                  MASTER_PORT=str(reserved.getsockname()[1]))  # fmt: skip
                try:
                    work(json.loads(storage), *spec)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            processes.append(process)
        failed = any([os.waitpid(process, 0)[1] for process in processes])
        print("failed" if failed else "done", number, *spec, flush=True)
