"""torch_trainer.py for trainings that record CUDA graphs, in their own thread or beside it."""

import contextlib
import sys
import threading

import torch

import torch_trainer
from torch_trainer import BATCH, DEVICE, HAS_GPU, LENGTH, Training

GRAPH_STEPS_MIN = 3  # Before a graph is recorded.


class Graph(Training):
    """The whole step is one CUDA graph that is replayed, from the fourth step of each life on."""

    dropout = 0.0
    optimizer_options = {"capturable": True} if HAS_GPU else {}

    def __init__(self):
        super().__init__()
        self.steps, self.graph = 0, None
        self.batch = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device=DEVICE)
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(1e-4, device=DEVICE)
        self.stream = torch.cuda.Stream() if HAS_GPU else None
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0)

    def around(self):
        return torch.cuda.stream(self.stream) if HAS_GPU else contextlib.nullcontext()

    def plain_step(self):
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.loss(self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, batch):
        self.batch.copy_(batch)
        self.steps += 1
        if not HAS_GPU or self.steps <= GRAPH_STEPS_MIN:
            return self.plain_step()
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self.recorded = self.plain_step()
            self.graph = graph
        self.graph.replay()
        return self.recorded.clone()


class GraphAside(Training):
    """Another thread records graphs, and replays them, all the time."""

    dropout = 0.0  # A graph that is recorded has the generator to itself.

    @contextlib.contextmanager
    def around(self):
        is_over = threading.Event()

        def record():
            while HAS_GPU and not is_over.is_set():
                stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
                values = torch.zeros(1 << 20, device=DEVICE)
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    values += 1
                graph.replay()
                torch.cuda.current_stream().synchronize()

        thread = threading.Thread(target=record)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


KINDS = {"graph": Graph, "graph_aside": GraphAside}

if __name__ == "__main__":
    torch_trainer.KINDS.update(KINDS)
    torch_trainer.main(*sys.argv[1:])
