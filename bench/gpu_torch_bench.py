"""gpu_torch: what a save of tensors on a GPU holds the loop, against torch.save and async_save.

The same state, in one run, in pairs. Ours is held until its copies have ended, as if there were no
computation to hide them behind; what the call alone takes is a figure of its own.
"""

import os
import sys
import tempfile
import warnings

import torch

from harness import Bar, Harness, seconds_of

FIGURES = 3
TENSOR_BYTES = 64 << 20


def ours_on_gpu(torch_bench, scratch, model):
    class OursOnGpu(torch_bench.Ours):
        """A guarded session: the call returns while the GPU's copies go on."""

        def __init__(self):
            super().__init__(scratch, model, "gpu", is_guarded=True, is_stored=False)

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
        ours.session.close()
        torch_bench._programs.run("ckpt", "stop", "--no-flush")
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
