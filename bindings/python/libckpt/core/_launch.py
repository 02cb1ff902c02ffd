"""Where this process stands among others: torchrun's environment, or the default process group,
and its Store say.
"""

import contextlib
import ipaddress
import os
import pathlib
import secrets
import socket
import time

from libckpt import _programs, errors
from libckpt.core import _frameworks, _ranks, _settings, _structure

PORT = 29411  # The port of the nodes' daemons, without the option `port`.


def complete(options):
    """(options, ranks): rank, world size, and for several nodes their list and a common secret."""
    options = dict(options)
    if not _settings.configured("daemon_path") and _programs.daemon_path():
        options.setdefault("daemon_path", _programs.daemon_path())
    if not _settings.configured("blob_capacity"):
        options.setdefault("blob_capacity", _structure.BLOB_CAPACITY)
    origin = None
    if "rank" not in options and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        origin = "the environment variables RANK and WORLD_SIZE"
        options["rank"] = _number("RANK")
        options["world_size"] = _number("WORLD_SIZE")
    elif not {"rank", "world_size"} & options.keys() and not _settings.configured("rank"):
        standing = _frameworks.first_answer(lambda adapter: adapter.standing())
        if standing is not None:
            options["rank"], options["world_size"] = standing
    is_disabled = _settings.is_true(options.get("disable", _settings.configured("disable")))
    is_alone = options.pop("is_alone", False)  # No process of its job is in the default group.
    ranks = _ranks.of(options, can_talk=not (is_disabled or is_alone))
    ranks.origin = origin
    if "nodes" in options or _settings.configured("nodes"):
        return options, ranks
    if ranks.are_several:
        _exchange(options, ranks)
    elif ranks.can_talk and _incarnation_file(options).exists():
        # The job had several ranks: it must not look older now.
        options.setdefault("incarnation", _next_incarnation(options))
    return options, ranks


def opened(ranks, make, *arguments):
    """Calls `make`, which opens on all ranks or on none: others would wait for one without it."""
    found = failure = None
    try:
        found = make(*arguments)
    except errors.CheckpointError as error:
        failure = error
    try:
        ranks.agree("opening", failure)
    except errors.CheckpointError:
        if found is not None:
            found.client.drop()
        raise
    return found


def _number(variable, default=0):
    text = os.environ.get(variable)
    try:
        return default if text is None else int(text)
    except ValueError as error:
        raise errors.InvalidArgument(
            f"{variable}: {text!r} is in the environment: a whole number is wanted"
        ) from error


def address_towards(host):
    """Ours, as that host sees it; loopback when that cannot be found out."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # Sends nothing.
        return probe.getsockname()[0]
    return "127.0.0.1"


def _is_loopback(address):
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # A name.


def _common_address(options, ranks):
    """Ours, as the other nodes see it: of rank 0's host the name often leads to loopback only."""
    given = _settings.chosen(options, "interface")
    address = given or address_towards(ranks.host or os.environ.get("MASTER_ADDR", "127.0.0.1"))
    others = [other for other in ranks.exchange("address", address) if not _is_loopback(other)]
    if not given and others and _is_loopback(address):
        return address_towards(others[0])
    return address


def node_and_port(options):
    """This node's name, and the port of its daemon."""
    node = _settings.chosen(options, "node") or socket.gethostname()
    return node, options.get("port") or _number(
        "LIBCKPT_PORT", _settings.configured("port") or PORT
    )


def _exchange(options, ranks):
    """All ranks say node and address; several nodes get a list, an incarnation and a secret."""
    node, port = node_and_port(options)
    domain = os.environ.get("LIBCKPT_FAILURE_DOMAIN", node)
    address = _common_address(options, ranks)
    facts = {
        "name": node,
        "node": f"{node}@{address}:{port}/{domain}",
        "is_hidden": _is_loopback(address) and not _settings.chosen(options, "interface"),
        "has_secret": bool(_settings.chosen(options, "secret_file")),
        "incarnation": _next_incarnation(options),
    }
    common = ranks.decide("node", facts, _in_common)
    if "problem" in common:
        raise errors.InvalidArgument(f"job {options['job']}: {common['problem']}")
    options.setdefault("incarnation", common["incarnation"])
    # Also for one node: a later start of one rank alone must not look older than this one. Where
    # no file can be made, no daemon can be started either: the opening that follows names that.
    with contextlib.suppress(errors.StorageError):
        keep(_incarnation_file(options), str(options["incarnation"]))
    if len(common["nodes"]) < 2:
        return
    options.update(node=node, nodes=common["nodes"])
    if not facts["has_secret"]:
        secret_file = own_file(options, "secret")
        with contextlib.suppress(errors.StorageError):  # The opening names what is not there.
            keep(secret_file, common["secret"])
        options["secret_file"] = str(secret_file)


def _in_common(facts):
    nodes = sorted({one["node"] for one in facts})
    names = sorted({one["name"] for one in facts})
    if len(nodes) != len(names):
        return {"problem": f"nodes of one name, or ranks of one node with two addresses: {nodes}; "
                           "name them with LIBCKPT_NODE and LIBCKPT_INTERFACE"}  # fmt: skip
    hidden = [one["name"] for one in facts if one["is_hidden"]]
    if len(nodes) > 1 and hidden:
        return {"problem": f"node {hidden[0]} found only a loopback address of its own: name one "
                           "that the other nodes see with LIBCKPT_INTERFACE"}  # fmt: skip
    have_secret = {one["has_secret"] for one in facts}
    if len(nodes) > 1 and len(have_secret) > 1:
        return {"problem": "some ranks were given a secret_file and others were not: give it to "
                           "all, or to none and the job makes one"}  # fmt: skip
    return {
        "nodes": nodes,
        "secret": secrets.token_hex(32),
        "incarnation": max(one["incarnation"] for one in facts),
    }


def own_file(options, kind):
    """Where this user keeps something about the job on this node."""
    directory = _settings.chosen(options, "runtime_dir")
    directory = pathlib.Path(directory or pathlib.Path.home() / ".cache" / "libckpt")
    return directory / f"{kind}-{options['job']}"


def _incarnation_file(options):
    return own_file(options, "incarnation")


def _next_incarnation(options):
    """By the clock, and whatever that says above the last one that was seen here."""
    try:
        last = int(_incarnation_file(options).read_text())
    except (OSError, ValueError):
        last = 0
    return max(int(time.time()), last + 1)


def keep(path, content):
    """In a file that only this user reads, whole or not at all."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(content)
        temporary.replace(path)
    except OSError as error:
        raise errors.StorageError(f"make {path}: {error.strerror}") from error
