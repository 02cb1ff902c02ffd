"""flash_checkpoint: what a save into memory holds the loop, against DLRover's flash checkpoint.

To be run by hand, since DLRover comes with nothing that the other benches want:

    python -m venv there && there/bin/pip install torch==2.13.0 numpy dlrover==0.6.1 grpcio protobuf
    there/bin/pip install ./bindings/python
    there/bin/python bench/flash_checkpoint.py --results bench/results/flash_checkpoint.jsonl

Both copy the same tensors into shared memory before the call returns, DLRover without checksums;
neither stores anything. First saves are each in a process of their own, which loads before it
saves, as the loops in both guides do, and finds nothing.
"""

import logging
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import warnings

import torch

import libckpt
from libckpt import _programs
from harness import Bar, Harness, seconds_of

TENSOR_BYTES = 16 << 20
WAIT = 60.0
FIRST_WAIT, ATTEMPTS = 20.0, 4


class Model(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        parts = (torch.nn.Parameter(torch.rand(TENSOR_BYTES // 4)) for _ in range(count))
        self.parts = torch.nn.ParameterList(parts)

    def change(self):
        with torch.no_grad():
            for part in self.parts:
                part[0] += 1


class Ours:
    def __init__(self, scratch, model):
        log = str(scratch / "log")
        self.session = libckpt.init("flash", log_file_path=log, raise_on_error=True)
        self.model, self.items, self.step = model, {"model": model}, 0

    def load(self):
        self.session.restore_or(self.items)

    def save(self):
        self.model.change()
        self.step += 1
        tickets = []
        held = seconds_of(lambda: tickets.append(self.session.save(self.step, self.items)))
        assert tickets[0].outcome == "started", tickets
        self.session.wait(self.step, "committed", WAIT)
        return held

    def end(self):
        self.session.close()


class Flash:
    def __init__(self, scratch, model):
        # Names its sockets and its shared memory: those of a process that was killed stay.
        os.environ["TORCHELASTIC_RUN_ID"] = f"{scratch.name}-{os.getpid()}"
        from dlrover.python.common.log import default_logger
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        default_logger.setLevel(logging.ERROR)
        self.checkpointer = DdpCheckpointer(str(scratch / "flash"))
        self.level = StorageType.MEMORY
        self.model, self.step = model, 0

    def save(self):
        self.model.change()
        self.step += 1

        def hold():
            state = self.model.state_dict()
            self.checkpointer.save_checkpoint(self.step, state, storage_type=self.level)

        held = seconds_of(hold)
        # It skips a save without a word while its lock is taken.
        assert self.checkpointer._engine._cached_step == self.step, "the save was skipped"
        return held

    def load(self):
        self.checkpointer.load_checkpoint()

    def has_what_was_saved(self):
        kept = self.checkpointer.load_checkpoint()
        return all(torch.equal(kept[f"parts.{index}"], part)
                   for index, part in enumerate(self.model.parts))  # fmt: skip

    def end(self):
        handler = self.checkpointer._engine._shm_handler
        handler.shared_memory.unlink()
        self.checkpointer._engine.saver_proc.kill()


SIDES = {"ours": Ours, "flash": Flash}


def save_first(scratch, side, count):
    """In a process of its own: prints how long its load of nothing took, and its first save."""
    one = SIDES[side](scratch, Model(count))
    loaded = seconds_of(one.load)
    print("seconds", loaded, one.save(), flush=True)
    one.end()


def first_save_of(side, scratch, count, loads):
    def measure():
        command = [sys.executable, __file__, "first", str(scratch), side, str(count)]
        for _ in range(ATTEMPTS):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                  start_new_session=True) as process:  # fmt: skip
                try:
                    told = process.communicate(timeout=FIRST_WAIT)[0]
                    loaded, saved = map(float, told.rpartition("seconds ")[2].split())
                    loads[side].append(loaded)
                    return saved
                except subprocess.TimeoutExpired:
                    # DLRover's two processes miss each other at times while they start.
                    os.killpg(process.pid, signal.SIGKILL)
        raise TimeoutError(f"no first save of {side} in {ATTEMPTS} attempts")

    return measure


def main():
    warnings.filterwarnings("ignore")
    if sys.argv[1:2] == ["first"]:
        scratch, side, count = sys.argv[2:]
        return save_first(pathlib.Path(scratch), side, int(count))
    harness = Harness("flash_checkpoint", __doc__)
    with tempfile.TemporaryDirectory(prefix="flash-", dir=harness.directory) as made:
        scratch = pathlib.Path(made)
        os.environ["LIBCKPT_RUNTIME_DIR"] = str(scratch / "runtime")
        harness.add_condition(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
        count = harness.bytes // TENSOR_BYTES
        loads = {side: [] for side in SIDES}
        harness.compare(Bar("B3d 1", "first save: DLRover's, into memory / save()", 5, 2),
                        first_save_of("ours", scratch, count, loads),
                        first_save_of("flash", scratch, count, loads))  # fmt: skip
        for side, seconds in loads.items():
            text = f"{side}: loading nothing took {statistics.median(seconds):.2f} s"
            harness.add_condition(text)
        model = Model(count)
        ours, flash = Ours(scratch, model), Flash(scratch, model)
        harness.compare(Bar("B3d", "stall: DLRover's save into memory / save(), checksum on",
                            1.5, 1.2), ours.save, flash.save)  # fmt: skip
        assert flash.has_what_was_saved()
        ours.end(), flash.end()
        _programs.run("ckpt", "stop", "--no-flush")
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
