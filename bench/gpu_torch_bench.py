"""gpu_torch: what a save of tensors on a GPU holds the loop, against torch.save and async_save.

The same state, in one run, in pairs. Ours is held until its copies have ended, as if there were no
computation to hide them behind. Figures of their own say what the call alone takes: also with half
a second of work queued before it, and of very many tensors.
"""

import math
import os
import sys
import tempfile
import warnings

import torch

from harness import Bar, Harness, seconds_of

FIGURES = 7
TENSOR_BYTES = 64 << 20
SAVES, SAVES_BEFORE = 12, 3
WIDTH = 8192  # Half a second of such products is some hundred launches; a stream takes a thousand.


def ours_on_gpu(torch_bench, scratch, model, name="gpu"):
    class OursOnGpu(torch_bench.Ours):
        """A guarded session: the call returns while the GPU's copies go on."""

        def __init__(self):
            super().__init__(scratch, model, name, is_guarded=True, is_stored=False)

        def held(self, is_to_the_end):
            self.model.change()
            torch.cuda.synchronize()  # The loop's own work is not ours to answer for.
            self.step += 1

            def hold():
                self.session.save(self.step, self.items)
                if is_to_the_end:
                    self.session.finish_capture()
                    torch.cuda.synchronize()

            took = seconds_of(hold)
            self.session.wait(self.step, self.level, torch_bench.WAIT)
            return took

    return OursOnGpu()


class Products:
    """Work of a loop, queued on the GPU."""

    def __init__(self, width=WIDTH):
        self._matrix = torch.rand(width, width, dtype=torch.half).cuda()
        self._run(3)  # The first ones load code.
        self._each = seconds_of(lambda: self._run(20)) / 20

    def _run(self, count):
        for _ in range(count):
            self._matrix @ self._matrix
        torch.cuda.synchronize()

    def queue(self, seconds):
        for _ in range(math.ceil(seconds / self._each)):
            self._matrix @ self._matrix


def call_times(ours, products, seconds_queued):
    """Milliseconds for which each call of save() held the loop, behind so much work."""
    times = []
    for _ in range(SAVES_BEFORE + SAVES):
        ours.model.change()
        products.queue(seconds_queued)
        ours.step += 1
        times.append(1e3 * seconds_of(lambda: ours.session.save(ours.step, ours.items)))
        ours.session.finish_capture()
        torch.cuda.synchronize()
        ours.session.wait(ours.step, ours.level, 300.0)
    return times[SAVES_BEFORE:]


def measure_calls(harness, torch_bench, scratch, ours):
    def measure(id, what, subject, seconds_queued):
        bar = Bar(id, f"session.save(), {what}: the call", 2, 10, False, False, "ms")
        harness.sample(bar, call_times(subject, products, seconds_queued))

    products = Products()
    measure("G4 py", "a model", ours, 0)
    measure("G4 py busy", "500 ms of work queued", ours, 0.5)
    for name, words, count, each in (
        ("20k", "20,000 tensors of 4 KiB, busy", 20_000, 4 << 10),
        ("4B", "3,000 tensors of 4 bytes, busy", 3_000, 4),
    ):
        model = torch_bench.Model(count, each).cuda()
        many = ours_on_gpu(torch_bench, scratch, model, name)
        measure(f"G4 py {name}", words, many, 0.05)
        many.session.close()


def main():
    warnings.filterwarnings("ignore")
    if not torch.cuda.is_available():
        print(f"gpu_torch: {FIGURES} figures skipped: torch sees no GPU")
        return 0
    import torch_bench

    harness = Harness("gpu_torch", __doc__)
    with tempfile.TemporaryDirectory(prefix="torch-", dir=harness.directory) as name:
        scratch = harness.directory / name
        os.environ["LIBCKPT_RUNTIME_DIR"] = str(scratch / "runtime")
        harness.add_condition(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
        model = torch_bench.Model(max(1, harness.bytes // TENSOR_BYTES), TENSOR_BYTES).cuda()
        ours = ours_on_gpu(torch_bench, scratch, model)
        stock = torch_bench.Stock(scratch, model)
        theirs = torch_bench.Dcp(scratch, model, no_dist=True)
        harness.compare(Bar("G7", "stall: torch.save and fsync / save() and its copies", 50, 20),
                        lambda: ours.held(True), stock.save)  # fmt: skip
        harness.compare(Bar("G7b", "stall: async_save, default / save() and its copies", 10, 4),
                        lambda: ours.held(True), theirs.save)  # fmt: skip
        harness.compare(Bar("G7c", "stall: async_save, default / the call alone"),
                        lambda: ours.held(False), theirs.save)  # fmt: skip
        measure_calls(harness, torch_bench, scratch, ours)
        ours.session.close()
        torch_bench._programs.run("ckpt", "stop", "--no-flush")
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
