"""GPU ranks: the shares of a restore go from GPU to GPU, by NCCL, over a communicator of our own.

    all ranks   say which shares lie on their GPU, and whether they can open NCCL
    rank 0      decides which go this way, and makes an id
    all ranks   join by the id, and say whether they could
    each share  is broadcast by its rank, and compared with fingerprints where it arrives
    all ranks   say how it ended: well everywhere, or everything is sent again in the usual way

A rank that has failed waits for the others at the next word. So no call may take as long as ranks
wait there (_ranks.SAY_SECONDS).
"""

import importlib.util
import logging
import os
import pathlib
import zlib

import torch

from libckpt import _native, errors
from libckpt.adapters.torch._buckets import buckets

logger = logging.getLogger("libckpt")

BYTES = 1 << 30  # A broadcast must end in time; the library takes no more.
PARTS = 1024  # Likewise.
SECONDS = 20.0  # To join, and for one broadcast: a GiB at 54 MB/s.
PATIENCE = 5.0  # An aborted call has this long to end.


def hand_round(ranks, by_source):
    """Fills what it can of the parts; returns the rest, by source. All ranks call it alike."""
    parts = [part for source in sorted(by_source) for part in by_source[source]]
    gpus, plan = _agree(ranks, parts)
    if plan["reason"]:
        return _usual_way(ranks, by_source, plan["reason"])
    on_gpus = int(plan["on_gpus"], 16)
    if not on_gpus:
        return by_source
    chosen, rest = _divide(by_source, on_gpus)
    failure = _try(gpus.join, ranks.rank, ranks.world_size, bytes.fromhex(plan["id"]), SECONDS)
    failures = ranks.failures("places in NCCL", failure)
    if not failures:
        failure = _send(gpus, ranks.rank, chosen)
        _check_quiet(ranks, gpus)
        failures = ranks.failures("shares by NCCL", failure)
    _try(gpus.close, PATIENCE)
    if failures:
        rank, name, text = failures[0]
        return _usual_way(ranks, by_source, f"rank {rank}: {name}: {text}")
    return rest


def _usual_way(ranks, by_source, reason):
    if ranks.rank == 0:
        logger.warning(
            "libckpt: job %s: the shares of this restore do not go round by NCCL, but through the "
            "process group: %s", ranks.job, reason,
        )  # fmt: skip
    return by_source


def _agree(ranks, parts):
    """This rank's GPUs, and what rank 0 decides."""
    gpu = next((found for found in map(gpu_of, parts) if found is not None), None)
    is_off = os.environ.get("LIBCKPT_NCCL", "").lower() in ("off", "0", "false", "no")
    gpus = problem = None
    if gpu is not None and not is_off:
        try:
            gpus = _native.GpuRanks(gpu, library(), PATIENCE)
        except errors.CheckpointError as error:
            problem = str(error)
    on_gpu = sum(1 << i for i, part in enumerate(parts) if gpus and gpu_of(part) == gpu)
    said = {
        "is_off": is_off or gpu is None,
        "problem": problem,
        "on_gpu": f"{on_gpu:x}",
        "sizes": zlib.crc32(",".join(str(part.numel()) for part in parts).encode()),
    }
    return gpus, ranks.decide("ways to hand round", said, lambda values: decide(values, gpus))


def decide(values, gpus):
    """Rank 0 decides what goes round by NCCL; all others wait for the answer."""
    nothing = {"reason": None, "on_gpus": "0"}
    if any(said["is_off"] for said in values):
        return nothing
    for rank, said in enumerate(values):
        if said["problem"]:
            return nothing | {"reason": f"rank {rank}: {said['problem']}"}
    if len({said["sizes"] for said in values}) > 1:
        return nothing | {"reason": "the ranks have shares of different sizes"}
    on_gpus = -1
    for said in values:
        on_gpus &= int(said["on_gpu"], 16)
    if not on_gpus:
        return nothing
    try:
        return {"reason": None, "on_gpus": f"{on_gpus:x}", "id": gpus.make_id(SECONDS).hex()}
    except errors.CheckpointError as error:
        return nothing | {"reason": f"rank 0: {error}"}


def _divide(by_source, on_gpus):
    """(parts that go by NCCL, the rest), each by source; bit i: the i-th part of all."""
    chosen, rest, index = {}, {}, 0
    for source in sorted(by_source):
        for part in by_source[source]:
            side = chosen if on_gpus >> index & 1 else rest
            side.setdefault(source, []).append(part)
            index += 1
    return chosen, rest


def _send(gpus, rank, by_source):
    """The error of this rank; None: it has sent and received all. After damage it goes on, since
    the others do."""
    damage = None
    for source in sorted(by_source):
        for pieces in batches(by_source[source]):
            stream = stream_of(gpu_of(pieces[0]))
            places = [(piece.data_ptr(), piece.numel()) for piece in pieces]
            failure = _try(gpus.broadcast, source, places, stream, SECONDS)
            if isinstance(failure, errors.Corruption):
                damage = failure
            elif failure is not None:
                return failure
    return damage


def _check_quiet(ranks, gpus):
    """Raises on all ranks when anything may still write to the tensors of one of them."""
    for rank, is_quiet in enumerate(ranks.exchange("ends of NCCL", gpus.is_quiet())):
        if not is_quiet:
            raise errors.Unavailable(
                f"restore: a broadcast by NCCL that was aborted has not ended on the GPU of rank "
                f"{rank}, and may still write to its tensors: start the ranks anew, perhaps with "
                "LIBCKPT_NCCL=off"
            )


def batches(parts):
    """The rows of bytes, cut into lists that one broadcast takes."""
    for pieces in buckets(parts, BYTES):
        for begin in range(0, len(pieces), PARTS):
            yield pieces[begin : begin + PARTS]


def _try(call, *arguments):
    try:
        call(*arguments)
    except errors.CheckpointError as error:
        return error
    return None


def gpu_of(part):
    """The number of the GPU that the tensor lies on; None: on none."""
    return part.device.index or 0 if part.device.type == "cuda" else None


def stream_of(gpu):
    """The stream on which the caller's work with the tensors is queued."""
    return torch.cuda.current_stream(gpu).cuda_stream


def library():
    """The path of NCCL as pip installs it, which the loader does not know; empty: none."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        found = None
    places = found.submodule_search_locations if found is not None else None
    for place in places or ():
        path = pathlib.Path(place, "lib", "libnccl.so.2")
        if path.exists():
            return str(path)
    return ""
