"""lora: what a step of a training of adapters sends to a peer and writes, against all of its state.

The program starts a second rank of itself, whose node holds the copies. The daemon counts the
bytes. Captures on the host copy everything, whatever has changed: that is no figure of this bench.
"""

import os
import shutil
import sys
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

import libckpt
import two_ranks
from harness import Bar, Harness, file_system_of

WIDTH, RANK = 2048, 10  # 1 % of the weights is trained.
LAYER_BYTES = 4 * (WIDTH * (WIDTH + 1) + 3 * 2 * WIDTH * RANK)  # With the moments of what is.
SHARING = ("xfs", "btrfs")


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, batch):
        return torch.tanh(self.base(batch) + self.up(self.down(batch)))


class Training:
    def __init__(self, layers, directory):
        self._model = torch.nn.Sequential(*(Adapted() for _ in range(layers)))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=0.01)
        self._directory = directory
        storage = {"dir": directory, "save_storage_interval": 1, "max_ckpt_num": 1}
        self.session = libckpt.init("bench-lora", replicas=2, skip_unchanged=True,
                                    raise_on_error=True, **(storage if directory else {}))
        self.session.guard(self._optimizer)
        self._items = {"model": self._model, "optimizer": self._optimizer, "rng": libckpt.RNG()}

    def counts_after(self, step):
        """(Bytes, and bytes that needed no work) of copies, and of what was stored, since ever."""
        self._optimizer.zero_grad()
        self._model(torch.randn(1, WIDTH)).square().mean().backward()
        self._optimizer.step()
        ticket = self.session.save(step, self._items, wait=two_ranks.WAIT)
        level = ticket.durable if self._directory else ticket.committed
        level.result(two_ranks.WAIT)
        daemon = self.session.status()["daemon"]
        sent, stored = daemon["copies_sent"], daemon["flushed"]
        dist.barrier()
        return [(sent["bytes"], sent["bytes_unchanged"]), (stored["bytes"], stored["bytes_shared"])]


def shares_of(counts):
    """The share of all bytes that each step but the first worked on."""
    steps = [(a - c, b - d) for (a, b), (c, d) in zip(counts[1:], counts, strict=False)]
    return [worked / (worked + spared) for worked, spared in steps]


def main():
    warnings.simplefilter("ignore")
    harness = Harness("lora", __doc__)
    scratch = two_ranks.start(of_two_nodes=True)
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    shares = file_system_of(harness.directory) in SHARING
    directory = harness.directory / scratch.name if shares else None
    layers = max(1, harness.bytes // LAYER_BYTES) if is_first else 1
    training = Training(layers, directory)
    counts = [training.counts_after(step) for step in range(1, harness.pairs + 2)]
    if is_first:
        sent, stored = zip(*counts, strict=True)
        bar = Bar("B33 sent", "bytes sent for a step / its state, 1 % trained", 0.03, 0.06, False)
        harness.sample(bar, shares_of(sent))
        if shares:
            bar = Bar("B33 put", "bytes written for it / its state", 0.03, 0.06, False)
            harness.sample(bar, shares_of(stored))
        else:
            print("B33 put: skipped, as files on this disk (--dir) cannot share Chunks")
    training.session.close()
    dist.barrier()
    if is_first and directory:
        shutil.rmtree(directory)
    dist.destroy_process_group()
    return harness.finish() if is_first else 0


if __name__ == "__main__":
    sys.exit(main())
