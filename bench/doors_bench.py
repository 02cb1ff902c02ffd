"""doors: what a save holds two ranks of a framework, against the framework's own.

The program starts a second rank of itself. Both make the same calls; rank 0 measures. Work that
goes on behind a save is waited for between the measurements and not counted, for either side.
"""

import itertools
import os
import pathlib
import shutil
import sys
import warnings

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import two_ranks
from harness import Bar, Harness, seconds_of

LAYER = 1024  # Parameters of a layer: its square.
# A large model's layers. Halves of such a size are fresh memory in each copy, while malloc keeps
# smaller ones: then the peer's copy is one into warm memory, which its users do not see.
WIDE = 6144


def model_of(count, width):
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(count)))


class DeepSpeed:
    """An engine of ZeRO 2, whose saves are whole before the next one."""

    def __init__(self, folder, count, is_ours):
        import deepspeed

        # On processors, DeepSpeed would compile a kernel here.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        config = {
            "train_batch_size": 2, "zero_optimization": {"stage": 2}, "steps_per_print": 10**9,
            "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
        }  # fmt: skip
        model = model_of(count, LAYER)
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        self.folder, self._is_ours = folder, is_ours
        self._numbers = itertools.count()
        if is_ours:
            import libckpt.deepspeed

            self._door = libckpt.deepspeed
            self._door.attach(self.engine, job="bench-deepspeed", save_mem_interval=10**9)
        self._step()

    def _step(self):
        loss = self.engine(torch.ones(1, LAYER)).square().mean()
        self.engine.backward(loss)
        self.engine.step()

    def save(self):
        self._step()
        tag = f"step-{next(self._numbers)}"
        dist.barrier()
        held = seconds_of(lambda: self.engine.save_checkpoint(self.folder, tag=tag))
        if self._is_ours:
            self._door.wait(self.engine)
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(pathlib.Path(self.folder) / tag)
        return held


class Dcp:
    """async_save of a module under fully_shard and its optimizer."""

    def __init__(self, model, optimizer, group, **options):
        self._model, self._optimizer = model, optimizer
        self._group, self._options = group, options
        self._numbers = itertools.count(1)
        self.name = None  # Makes a save's checkpoint_id from its number.

    def save(self):
        self._model(torch.ones(1, WIDE)).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        name = self.name(next(self._numbers))
        answers = []
        dist.barrier()
        held = seconds_of(lambda: answers.append(dcp.async_save(
            {"model": model, "optimizer": optimizer}, checkpoint_id=name,
            process_group=self._group, **self._options)))  # fmt: skip
        getattr(answers[0], "upload_completion", answers[0]).result(two_ranks.WAIT)
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(name, ignore_errors=True)
        return held


def deepspeed_bars(harness, scratch):
    # Weights, masters and two moments, of which each rank has its half but for the weights.
    count = max(1, harness.bytes // (LAYER * LAYER * 4 * 4))
    ours = DeepSpeed(f"{scratch}/ours", count, is_ours=True)
    stock = DeepSpeed(f"{scratch}/stock", count, is_ours=False)
    harness.compare(
        Bar("B27", "held: stock DeepSpeed save_checkpoint, ZeRO 2 / ours", 10, 5),
        ours.save, stock.save,
    )  # fmt: skip
    ours._door.close(ours.engine)


def dcp_bars(harness, scratch):
    from torch.distributed.fsdp import fully_shard

    import libckpt.dcp

    count = max(1, harness.bytes // (WIDE * WIDE * 4 * 3))
    model = model_of(count, WIDE)
    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    group = dist.new_group(backend="gloo")
    storage = libckpt.dcp.Storage("ckpt://bench-dcp", raise_on_error=True)
    ours = Dcp(model, optimizer, group, storage_writer=storage, async_stager=storage)
    ours.name = "ckpt://bench-dcp/step-{}".format
    stock = Dcp(model, optimizer, group)
    stock.name = f"{scratch}/dcp-{{}}".format
    harness.compare(Bar("B28", "held: async_save of FSDP2 shards / ours", 5, 2),
                    ours.save, stock.save)  # fmt: skip
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    stager = DefaultStager(StagingOptions(False, False, False, False))  # Nothing for a GPU.
    kept = Dcp(model, optimizer, group, async_stager=stager)
    kept.name = f"{scratch}/kept-{{}}".format
    what = "held: the same with memory that is kept / ours"
    harness.compare(Bar("B28w", what, 1.5, 1.1, is_judged=False),  # docs/decisions/0075.
                    ours.save, kept.save)  # fmt: skip
    storage.session().close()
    storage.close()


def main():
    warnings.simplefilter("ignore")
    harness = Harness("doors", __doc__)
    scratch = two_ranks.start() / "state"
    dist.init_process_group("gloo")
    deepspeed_bars(harness, scratch)
    dcp_bars(harness, scratch)
    dist.barrier()
    dist.destroy_process_group()
    if os.environ["RANK"] != "0":
        return 0
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
