"""Ranks, forked, of one machine or of several nodes: for the trainers of the frameworks' doors."""

import ctypes
import gc
import os
import pathlib
import signal
import sys

import faults
import ports

PR_SET_PDEATHSIG = 1


def become_rank(count, nodes=()):
    """Forks the ranks, which die with this process; returns in each of them.

    nodes: the environment of each rank, where each is on a node of its own.
    """
    parent, children = os.getpid(), []
    with ports.reserve() as reserved:
        for rank in range(count):
            children.append(os.fork())
            if children[-1] == 0:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
                port = str(reserved.getsockname()[1])
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count),
                                  LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1",
                                  MASTER_PORT=port)  # fmt: skip
                if nodes:
                    _enter_node(rank, nodes[rank])
                return
            os.write(1, f"process {rank} {children[-1]}\n".encode())
        ended = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(ended))


def _enter_node(rank, environment):
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", NODE_RANK=str(rank), **environment)
    if "SPACE" in environment:
        ports.enter(environment["SPACE"])


def uninstall():
    """From here on libckpt is not installed: an import of it or of its parts fails, in a pickle,
    too. The trainers' server may have had it for others."""
    for name in {"libckpt", *(each for each in sys.modules if each.startswith("libckpt."))}:
        sys.modules[name] = None


def pretend_gpus(state):
    """For the state of accelerate, which shards on GPUs only; FSDP itself does on CPUs, too."""
    state.distributed_type = type(state.distributed_type).MULTI_GPU


def say(*words):
    """One line, whole among those of other ranks."""
    faults.check()
    os.write(1, (f"r{os.environ.get('RANK', 0)} " + " ".join(map(str, words)) + "\n").encode())


def leave_group():
    """Torch's threads end here: one that wants the interpreter when that has ended, terminates us.

    They also stay while a model that was made parallel does, so none may be left.
    """
    ports.leave()
    gc.collect()
    names = [name.read_text().strip() for name in pathlib.Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if "gloo" in name], names
