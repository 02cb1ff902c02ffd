"""Where ranks meet, and how they part."""

import ctypes
import socket


def reserve():
    """A socket on a port that nobody is given by chance while it is open, and that can be bound."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def enter(space):
    """The network of a node; what is started from here has it too."""
    clone_newnet = 0x40000000
    with open(space) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), f"enter {space}")


def leave():
    """Ends the process group of a rank when all ranks have received what the others sent.

    gloo drops what a rank has not read yet once the sender's end of the connection is closed, and
    the store goes with rank 0.
    """
    import datetime

    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    deadline = datetime.timedelta(seconds=120)
    store.set(f"received/{rank}", "")
    store.wait([f"received/{other}" for other in ranks], deadline)
    store.set(f"left/{rank}", "")
    if rank == 0:
        store.wait([f"left/{other}" for other in ranks], deadline)
    dist.destroy_process_group()
