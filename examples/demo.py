"""`--demo` of the trainers beside this file: kills them, and compares their ends.

Nothing here is needed to use libckpt: a trainer is started, killed and started again, as a job
would be, and must end with the weights of one that was left alone.
"""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

from libckpt import _programs

# Else ranks that torchrun starts again may find the addresses of the dead ones in its Store.
RESTARTS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Demo:
    """Runs of one script, with a daemon of their own that ends with the demo."""

    def __init__(self, script):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="libckpt-demo-"))
        self._script = script
        os.environ["LIBCKPT_RUNTIME_DIR"] = str(self.scratch / "runtime")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lose_memory()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def whole(self, *arguments):
        """Runs the script to its end; returns its last line."""
        with self._start(arguments) as process:
            lines = [self._show(line) for line in process.stdout]
        if process.returncode != 0:
            sys.exit(f"demo: the trainer ended with {process.returncode}")
        return lines[-1]

    def killed(self, *arguments, after=(20, 60)):
        """Kills the script, without a warning, at a random step."""
        at = random.randint(*after)
        with self._start(arguments) as process:
            for line in process.stdout:
                self._show(line)
                if line.startswith("step ") and int(line.split()[1]) >= at:
                    process.send_signal(signal.SIGKILL)
                    print(f"--- kill -9 at step {line.split()[1]}", flush=True)
                    return
        sys.exit("demo: the trainer had ended before it could be killed")

    def ranks(self, count, *arguments, result, shows=lambda line: True):
        """Runs the script under torchrun, which starts killed ranks again, and shows what it said.
        Returns what stands behind `result` at last."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--max-restarts=3", f"--nproc-per-node={count}", self._script,
                   *map(str, arguments)]  # fmt: skip
        environment = {"OMP_NUM_THREADS": "1", **RESTARTS, **os.environ}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, check=True
        )
        print(*filter(shows, done.stdout.splitlines()), sep="\n", flush=True)
        return done.stdout.rpartition(result)[2].partition("\n")[0]

    def lose_memory(self):
        """As a power cut: the daemon's memory is gone, storage is left."""
        _programs.run("ckpt", "stop", "--no-flush")

    def _start(self, arguments):
        return subprocess.Popen(
            [sys.executable, self._script, *map(str, arguments)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _show(self, line):
        is_told = line.startswith(("resumes ", "final "))
        if is_told or (line.startswith("step ") and int(line.split()[1]) % 20 == 0):
            print(f"    {line}", end="", flush=True)
        return line.strip()


def title(text):
    print(f"\n== {text}", flush=True)


def is_same(what, expected, found):
    print(f"the {what}", "the same" if found == expected else "DIFFERENT", flush=True)
    return found == expected


def compare(expected, found):
    if expected != found:
        sys.exit(f"demo: FAILED: it ended with {found}, one that was left alone with {expected}")
    print(f"--- the same as if nothing had happened: {found}", flush=True)


def beside_stock(script, steps, framework, stored):
    """Two kills, compared with the framework alone; then a loss of all memory, from which the
    framework alone goes on, from the `stored`."""
    with Demo(script) as runs:
        title(f"stock {framework}, and nobody is killed")
        expected = runs.whole("--dir", runs.scratch / "whole", "--steps", steps, "--stock")

        title("with libckpt, killed twice")
        own = ("--dir", runs.scratch / "own", "--steps", steps)
        runs.killed(*own, after=(25, 35))
        runs.killed(*own, after=(55, 75))
        compare(expected, runs.whole(*own))

        title(f"killed, and its memory is lost: stock {framework} goes on from its {stored}")
        lost = ("--dir", runs.scratch / "lost", "--steps", steps)
        runs.killed(*lost, after=(45, 55))
        runs.lose_memory()
        runs.whole(*lost, "--stock")
