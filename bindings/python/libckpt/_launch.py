"""Where this process stands among others: what torchrun's environment and its Store tell."""

import os
import pathlib
import secrets
import socket
import sys
import time

PORT = 29411  # Of the nodes' daemons, unless the option `port` says otherwise.


def complete(options):
    """The options with rank, world size, and for several nodes their list and a common secret."""
    options = dict(options)
    if "rank" not in options and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        options["rank"] = int(os.environ["RANK"])
        options["world_size"] = int(os.environ["WORLD_SIZE"])
    are_known = "nodes" in options or os.environ.get("LIBCKPT_NODES")
    if options.get("world_size", 1) > 1 and not are_known:
        store = _store()
        if store is not None:
            _exchange(options, store)
    return options


def _store():
    """torch's own Store; none when torch.distributed is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    if not torch.distributed.is_initialized():
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def _address():
    """Ours, as the host of the Store sees it."""
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # Sends nothing.
        return probe.getsockname()[0]


_rounds = {}


def _exchange(options, store):
    """All ranks tell node and address; several nodes get a list, an incarnation and a secret."""
    job, rank, world = options["job"], options["rank"], options["world_size"]
    turn = _rounds[job] = _rounds.get(job, 0) + 1
    key = f"libckpt/{job}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{turn}"
    node = options.get("node") or os.environ.get("LIBCKPT_NODE") or socket.gethostname()
    port = options.get("port") or int(os.environ.get("LIBCKPT_PORT", PORT))
    interface = options.get("interface") or os.environ.get("LIBCKPT_INTERFACE") or _address()
    domain = os.environ.get("LIBCKPT_FAILURE_DOMAIN", node)
    store.set(f"{key}/node/{rank}", f"{node}@{interface}:{port}/{domain}")
    if rank == 0:
        store.set(f"{key}/common", f"{int(time.time())} {secrets.token_hex(32)}")
    told = [store.get(f"{key}/node/{other}").decode() for other in range(world)]
    nodes = sorted(set(told))
    if len({text.split("@")[0] for text in nodes}) < 2:
        return
    incarnation, secret = store.get(f"{key}/common").decode().split()
    options.update(node=node, nodes=nodes, incarnation=int(incarnation))
    if not options.get("secret_file") and not os.environ.get("LIBCKPT_SECRET_FILE"):
        options["secret_file"] = str(_keep_secret(options, secret))


def _keep_secret(options, secret):
    """The first one stays: daemons that run already know it."""
    directory = options.get("runtime_dir") or os.environ.get("LIBCKPT_RUNTIME_DIR")
    directory = pathlib.Path(directory or pathlib.Path.home() / ".cache" / "libckpt")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"secret-{options['job']}"
    temporary = directory / f".secret-{options['job']}-{os.getpid()}"
    temporary.touch(mode=0o600)
    temporary.write_text(secret)
    temporary.replace(path)
    return path
