"""reload: from kill -9 of a rank to the end of the first step after it, against the stock reload.

Two ranks train. One is killed, the other one ends with it as under a launcher, and both are started
again. The time of their imports and of their first step is in it, on both sides. Stock frameworks
had saved the newest step, and read their files from the disk, as on a node that comes in for
another; ours take it from memory.
"""

import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from libckpt import _programs
from two_ranks import free_port

LAYER = 1024  # Parameters of a layer: its square.
RANKS, WAIT = 2, 60.0
FRAMEWORKS = {"dcp": "FSDP2 by dcp.load", "deepspeed": "DeepSpeed ZeRO 2"}


# --- what a rank does


class Dcp:
    def __init__(self, count, job, folder):
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        import libckpt.dcp

        dist.init_process_group("gloo")
        self._model = torch.nn.Sequential(
            *(torch.nn.Linear(LAYER, LAYER, bias=False) for _ in range(count))
        )
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        for part in [*self._model, self._model]:
            fully_shard(part, mesh=mesh)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=0.001)
        self._batch = torch.ones(1, LAYER)
        self._storage = libckpt.dcp.Storage(f"ckpt://{job}") if job else None
        self._folder, self._job = folder, job
        # It makes the optimizer's state, by a step: on both sides, and no part of a load.
        self._loaded = self._state()

    def _state(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer, "step": 0}

    def load(self):
        """The newest step; 0: there is none."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        name, options = self._folder, {}
        if self._job:
            name, options = f"ckpt://{self._job}/latest", {"storage_reader": self._storage}
            if self._storage.find(name) is None:
                return 0
        elif not os.path.exists(f"{name}/.metadata"):
            return 0
        state = self._loaded
        dcp.load(state, checkpoint_id=name, **options)
        set_state_dict(self._model, self._optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])  # fmt: skip
        return state["step"]

    def step(self):
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def save(self, step):
        import torch.distributed.checkpoint as dcp

        name, options = self._folder, {}
        if self._job:
            name, options = f"ckpt://{self._job}/step-{step}", {"storage_writer": self._storage}
        dcp.save({**self._state(), "step": step}, checkpoint_id=name, **options)
        return step


class DeepSpeed:
    def __init__(self, count, job, folder):
        import deepspeed
        import torch

        import libckpt.deepspeed

        # On processors, DeepSpeed would compile a kernel here.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        model = torch.nn.Sequential(
            *(torch.nn.Linear(LAYER, LAYER, bias=False) for _ in range(count))
        )
        config = {
            "train_batch_size": RANKS, "zero_optimization": {"stage": 2},
            "steps_per_print": 10**9,
            "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
        }  # fmt: skip
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        if job:
            libckpt.deepspeed.attach(self._engine, job=job, raise_on_error=True)
        self._batch, self._job, self._folder = torch.ones(1, LAYER), job, folder

    def load(self):
        self._engine.load_checkpoint(self._folder)
        return self._engine.global_steps

    def step(self):
        self._engine.backward(self._engine(self._batch).square().mean())
        self._engine.step()

    def save(self, step):
        if not self._job:
            self._engine.save_checkpoint(self._folder)
            return step
        while not self._is_committed(step):  # The first is skipped while its memory is made.
            self.step()
            step += 1
        return step

    def _is_committed(self, step):
        """On all ranks."""
        import torch

        import libckpt

        is_so = torch.ones(())
        try:
            self._engine._libckpt.memory.session.wait(step, "committed", WAIT)
        except libckpt.CheckpointError:
            is_so.zero_()
        torch.distributed.all_reduce(is_so, torch.distributed.ReduceOp.MIN)
        return bool(is_so)


def train(framework, count, job, folder):
    warnings.simplefilter("ignore")
    one = {"dcp": Dcp, "deepspeed": DeepSpeed}[framework](int(count), job, folder)
    began = time.monotonic()
    step = one.load()
    loaded = time.monotonic()
    one.step()
    print("bench stepped", time.monotonic(), loaded - began, step + 1, flush=True)
    print("bench ready", one.save(step + 1), flush=True)
    signal.pause()


# --- what kills them


class Side:
    """Two ranks that are killed and started again."""

    def __init__(self, framework, count, scratch, job):
        folder = scratch / f"{job or 'stock'}-{framework}"
        self._folder = folder
        self._words = [framework, str(count), job, str(folder)]
        self._processes, self._newest, self.loads = [], 0, []
        self._start()

    def _start(self):
        """When the first step after the start had ended."""
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
                  "WORLD_SIZE": str(RANKS)}  # fmt: skip
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "rank", *self._words], stdout=subprocess.PIPE, text=True,
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        said = [self._hear(process, "stepped") for process in self._processes]
        assert {int(step) for *_, step in said} == {self._newest + 1}, "a step was lost"
        (self._newest,) = {int(self._hear(each, "ready")[0]) for each in self._processes}
        self.loads.append(max(float(load) for _, load, _ in said))
        return max(float(when) for when, *_ in said)

    def _hear(self, process, word):
        for line in process.stdout:
            if line.startswith(f"bench {word}"):
                return line.split()[2:]
        raise RuntimeError(f"{self._words}: a rank ended with {process.wait()}")

    def restart(self):
        self._leave_page_cache()
        began = time.monotonic()
        self.kill()
        return self._start() - began

    def _leave_page_cache(self):
        for path in self._folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def kill(self):
        for process in reversed(self._processes):
            process.kill()
        for process in self._processes:
            process.wait()
            process.stdout.close()


def main():
    if sys.argv[1:2] == ["rank"]:
        return train(*sys.argv[2:])
    from harness import Bar, Harness

    harness = Harness("reload", __doc__)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="reload-", dir=harness.directory))
    os.environ["LIBCKPT_RUNTIME_DIR"] = str(scratch / "runtime")
    sides = []
    try:
        for framework, name in FRAMEWORKS.items():
            count = max(1, harness.bytes // (LAYER * LAYER * 4 * 3))
            ours = Side(framework, count, scratch, f"bench-{framework}")
            stock = Side(framework, count, scratch, "")
            sides += [ours, stock]
            what = f"kill -9 to first step, {name}: stock / ours"
            harness.compare(Bar(f"B31 {framework[:4]}", what, 3, 1.5, is_judged=False),
                            ours.restart, stock.restart)  # fmt: skip
            # The first start loads nothing, and the next one is not counted either.
            ratios = [s / o for o, s in itertools.islice(zip(ours.loads, stock.loads), 2, None)]
            harness.sample(Bar(f"load {framework[:4]}", f"the load alone, {name}: stock / ours"),
                           sorted(ratios))  # fmt: skip
            for side in (ours, stock):
                side.kill()
    finally:
        for side in sides:
            side.kill()
        _programs.run("ckpt", "stop", "--no-flush")
        shutil.rmtree(scratch, ignore_errors=True)
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
