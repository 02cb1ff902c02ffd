"""slow_storage: what storage that is slow, full or hung costs a loop that saves to it.

The loop computes, and saves each step to memory and storage. The daemon has a library before its
own (slow_disk.cpp), which makes its disk slow, full or hung while the loop runs, and normal again.
Only the calls of save() are timed. Each step is captured on both sides before the next one begins.
Between the measurements the bench waits until storage is done.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

import torch

import libckpt
from libckpt import _programs
from harness import Bar, Harness

SAVES = 12
TENSOR_BYTES = 16 << 20
STATE_BYTES_MAX = 256 << 20
WAIT = 120.0
KINDS = ("slow", "full", "hung")


class Disk:
    """The daemon's disk. slow_disk.cpp reads its mode from a file."""

    def __init__(self, scratch):
        source = pathlib.Path(__file__).with_name("slow_disk.cpp")
        library, wrapper = scratch / "slow_disk.so", scratch / "ckptd"
        self._mode = scratch / "mode"
        self.become("normal")
        command = ["c++", "-std=c++20", "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"]
        subprocess.run(command, check=True)
        wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD={library} SLOW_DISK_MODE={self._mode} '
                           f'exec {_programs.DIRECTORY / "ckptd"} "$@"\n')  # fmt: skip
        wrapper.chmod(0o700)
        self.daemon = str(wrapper)

    def become(self, what):
        new = self._mode.with_suffix(".new")
        new.write_text(what)
        new.rename(self._mode)


class Loop:
    def __init__(self, scratch, disk, size):
        self.disk = disk
        self.runtime = scratch / "runtime"
        self.session = libckpt.init("slow", scratch / "dir", save_mem_interval="never",
                                    save_storage_interval=1, keep=1, daemon_path=disk.daemon,
                                    runtime_dir=str(self.runtime),
                                    log_file_path=str(scratch / "log"))  # fmt: skip
        tensors = [torch.rand(TENSOR_BYTES // 4) for _ in range(size // TENSOR_BYTES)]
        self.items = {"tensors": tensors}
        self.session.restore_or(self.items)
        self.left, self.right = torch.rand(512, 512), torch.rand(512, 512)
        self.step = self.missed = 0

    def save(self):
        self.step += 1
        begin = time.perf_counter()
        ticket = self.session.save(self.step, self.items)
        held = time.perf_counter() - begin
        if not ticket:
            self.missed += 1
        else:
            self.session.wait(self.step, "committed", WAIT)
        return held

    def settle(self):
        """The newest step is on storage, and nothing is under way."""
        self.disk.become("normal")
        self.save()
        self.session.flush(WAIT)

    def held_while(self, kind):
        self.settle()
        self.disk.become(kind)
        total = 0.0
        for _ in range(SAVES):
            for _ in range(10):
                torch.mm(self.left, self.right)
            total += self.save()
        self.disk.become("normal")
        return total

    def end(self):
        self.settle()
        self.session.close()
        _programs.run("ckpt", "stop", "--no-flush", "--runtime-dir", str(self.runtime))


def main():
    harness = Harness("slow_storage", __doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="slow-", dir=harness.directory) as name:
        scratch = pathlib.Path(name)
        loop = Loop(scratch, Disk(scratch), min(harness.bytes, STATE_BYTES_MAX))
        for kind in KINDS:
            bar = Bar(f"B25 {kind}", f"save() while storage is {kind} / while it is not", 1.1, 1.5,
                      is_higher_better=False)  # fmt: skip
            before = loop.missed
            harness.compare(bar, lambda kind=kind: loop.held_while(kind),
                            lambda: loop.held_while("normal"))  # fmt: skip
            harness.add_condition(f"{kind}: {loop.missed - before} saves were skipped")
        loop.end()
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
