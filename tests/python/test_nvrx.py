"""Goal: the manager of local checkpoints takes the real state dicts of Megatron and NVRx.

Method: megatron-core's class over NVRx's, in a group of one rank; Megatron's queue of asynchronous
saves. A second manager loads what the first one saved, element by element.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia_resiliency_ext")
pytest.importorskip("megatron.core")

import torch.distributed as dist  # noqa: E402
from megatron.core.dist_checkpointing.mapping import (  # noqa: E402
    ShardedObject,
    ShardedTensor,
)
from megatron.core.dist_checkpointing.strategies import async_utils  # noqa: E402
from megatron.core.dist_checkpointing.tensor_aware_state_dict import (  # noqa: E402
    MCoreTensorAwareStateDict,
)
from nvidia_resiliency_ext.checkpointing.local import basic_state_dict  # noqa: E402

from libckpt.megatron import LocalCheckpointManager  # noqa: E402


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def manager(runtime, group, tmp_path):
    """Makes one, as a new process does; the one before it has died."""
    made = []

    def make():
        if made:
            made[-1].session.abandon()
        made.append(LocalCheckpointManager(tmp_path / "local", session_id="s"))
        return made[-1]

    yield make
    made[-1].session.close()


def sharded(weight, bias, numbers):
    tensors = {name: ShardedTensor.from_rank_offsets(name, tensor, replica_id=0)
               for name, tensor in (("weight", weight), ("bias", bias))}  # fmt: skip
    return {"model": tensors, "rng": ShardedObject("rng", numbers, (1,), (0,)), "iteration": 7}


def test_megatrons_state_dict_comes_back(manager, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")  # The queue's, on a GPU.
    weight, bias = torch.arange(6.0).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16)
    state, _ = MCoreTensorAwareStateDict.from_state_dict(sharded(weight, bias, [1, 2]), "atomic")
    first = manager()
    assert first.find_latest() == -1
    assert first.save(state, 1) is None
    assert not state.is_hollow
    first.session.wait(1, "committed")
    weight += 1
    calls, finalized = async_utils.AsyncCallsQueue(), []
    request = first.save(state, 2, is_async=True)
    request.add_finalize_fn(lambda: finalized.append(2))
    calls.schedule_async_request(request)
    calls.maybe_finalize_async_calls(blocking=True)
    assert finalized == [2]
    first.session.wait(2, "committed")

    second = manager()
    assert second.find_latest() == 2
    found, _ = second.load()
    into = sharded(torch.zeros(2, 3), torch.zeros(3, dtype=torch.bfloat16), None)
    values = found.to_state_dict(into, algo="atomic")
    assert torch.equal(values["model"]["weight"], weight)
    assert torch.equal(values["model"]["bias"], bias)
    assert (values["rng"], values["iteration"]) == ([1, 2], 7)


class OnCpu(basic_state_dict.BasicTensorAwareStateDict):
    """NVRx's own wants each tensor on a GPU."""

    def __init__(self, state_dict):
        self.state_dict, self._is_hollow = state_dict, False

    def restore_tensor_device(self, non_blocking=True):
        assert not self.is_hollow


def test_nvrxs_state_dict_comes_back(manager):
    state = {"layers": [torch.arange(5.0), {"scale": torch.ones(2, dtype=torch.float16)}], "at": 3}
    first = manager()
    first.find_latest()
    first.save(OnCpu(state), 4)
    first.session.wait(4, "committed")
    second = manager()
    assert second.find_latest() == 4
    found = second.load()[0].state_dict
    assert torch.equal(found["layers"][0], state["layers"][0])
    assert torch.equal(found["layers"][1]["scale"], state["layers"][1]["scale"])
    assert found["at"] == 3
