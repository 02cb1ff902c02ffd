"""Two ranks: a bench starts a second rank of itself, and both make the same calls."""

import atexit
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

from libckpt import _programs

WAIT = 300.0
SCRATCH = "CKPT_BENCH_SCRATCH"
RUNTIME = "LIBCKPT_RUNTIME_DIR"


def start(of_two_nodes=False):
    """The directory of both. The second rank ends with this one, and their daemons do.

    of_two_nodes: each rank has a daemon of its own, as on another machine.
    """
    if "RANK" in os.environ:
        return pathlib.Path(os.environ[SCRATCH])
    scratch = tempfile.mkdtemp(prefix="ckpt-bench-")
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2",
              SCRATCH: scratch}  # fmt: skip
    of_rank = []
    for rank in "01":
        own = {**common, "RANK": rank, "LOCAL_RANK": rank, RUNTIME: f"{scratch}/run"}
        if of_two_nodes:
            own |= {"LIBCKPT_NODE": f"node-{rank}", "LIBCKPT_INTERFACE": "127.0.0.1",
                    "LIBCKPT_PORT": free_port(), RUNTIME: f"{scratch}/run-{rank}"}  # fmt: skip
        of_rank.append(own)
    words = [word for word in sys.argv[1:] if not word.startswith("--results")]
    if "--results" in sys.argv:
        words.remove(sys.argv[sys.argv.index("--results") + 1])
    other = subprocess.Popen([sys.executable, sys.argv[0], *words],
                             env={**os.environ, **of_rank[1]},
                             stdout=subprocess.DEVNULL)  # fmt: skip
    os.environ.update(of_rank[0])

    def end():
        other.wait(timeout=WAIT)
        for directory in {own[RUNTIME] for own in of_rank}:
            _programs.run("ckpt", "stop", "--no-flush", "--runtime-dir", directory)
        shutil.rmtree(scratch, ignore_errors=True)

    atexit.register(end)
    return pathlib.Path(scratch)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
