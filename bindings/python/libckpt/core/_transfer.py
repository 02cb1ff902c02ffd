"""Transfer: a state from the memory of one node into that of another, as a job of two ranks.

1. Both ends open the job: the sender as rank 0, with the state, the receiver as rank 1, with none.
   The sender has made room for the state by then, the receiver says that it is ready.
2. Both save the step. It is committed when the receiver's daemon holds a verified copy of rank 0's
   shard, as the loss of a node wants it: the daemons bring it there, no trainer does.
3. The sender lets go of the job, as a death would, and says so. On two nodes its daemon drops it.
4. The receiver goes on alone, as a job of one rank on its own node: its rank 0 restores the step.
5. The receiver's daemon drops the job.

On one node both ranks have one daemon, and nothing is copied between steps 2 and 4. The ends speak
through `words`, whatever carries them: say(name, what, **words) and hear(name, what, deadline).
"""

import contextlib
import datetime
import secrets
import socket
import time

from libckpt import _programs, errors
from libckpt.core import _launch
from libckpt.session import Session
from libckpt.ticket import outcome_text

LISTEN_SECONDS = 2.0  # A daemon that has opened the job listens in milliseconds.
LOOK_EVERY = 0.02
SOON_SECONDS = 10.0  # The other end acts at once: the default of `open_deadline`.


class Deadline:
    def __init__(self, seconds):
        self.seconds, self._ends = seconds, time.monotonic() + seconds

    def left(self):
        return max(0.001, self._ends - time.monotonic())

    def is_over(self):
        return time.monotonic() >= self._ends

    def delta(self):
        return datetime.timedelta(seconds=self.left())


class LocalDaemon:
    """Where this process's daemon is, and with which options its jobs are opened."""

    def __init__(self, options, allow_pickle):
        self._options = {name: value for name, value in options.items() if value is not None}
        self._allow_pickle = allow_pickle
        self.failure = None  # Why a part in a transfer could not be taken here.
        self.node, self.port = _launch.node_and_port(self._options)

    def address(self, host):
        return self._options.get("interface") or _launch.address_towards(host)

    def open(self, rank, words, deadline):
        """A session of the job of two ranks."""
        more = {"rank": rank, "world_size": 2, "nodes": words["nodes"]}
        if len(words["nodes"]) > 1:  # They prove by a file that both may have the state.
            path = self._secret_file(words["job"])
            _launch.keep(path, words["secret"])
            more["secret_file"] = str(path)
        # The other end is there. Where its daemon is not reached, time is left for another way.
        session = self._session(words["job"], deadline, more, _soon(deadline))
        try:
            _check_listens(words["nodes"], rank)
        except errors.Unavailable:
            session.abandon()
            raise
        return session

    def open_alone(self, words, deadline):
        """A session of the receiver, on the node that has all by now."""
        more = {"rank": 0, "world_size": 1, "nodes": words["nodes"][-1:], "incarnation": 1}
        return self._session(words["job"], deadline, more, deadline)

    def _session(self, job, deadline, more, restore_deadline):
        given = {"job": job, "is_alone": True, "node": self.node, "replicas": 2,
                 "open_deadline": _text(_soon(deadline)),
                 "restore_deadline": _text(restore_deadline)}  # fmt: skip
        options = {**given, **self._options, **more}
        return Session(options, raise_on_error=True, allow_pickle=self._allow_pickle)

    def _secret_file(self, job):
        return _launch.own_file({**self._options, "job": job}, "secret")

    def drop(self, job):
        """Frees the memory that this node's daemon has of it, if it has any."""
        directory = self._options.get("runtime_dir")
        _programs.run("ckpt", "drop", job, *(["--runtime-dir", directory] if directory else ()))
        with contextlib.suppress(OSError):
            self._secret_file(job).unlink(missing_ok=True)


class Sending:
    """The sending of one state to one receiver."""

    def __init__(self, daemon, name, ask, deadline):
        self._daemon, self._ask, self._deadline = daemon, ask, deadline
        self.job = f"{name}.{secrets.token_hex(8)}"
        nodes = [f"{ask['node']}@{ask['address']}:{ask['port']}"]
        if daemon.node != ask["node"]:
            nodes.insert(0, f"{daemon.node}@{daemon.address(ask['address'])}:{daemon.port}")
        self.words = {"job": self.job, "nodes": nodes, "secret": secrets.token_hex(32)}
        self._session = None

    def capture(self, step, state, words):
        """When it returns, the state may change. Raises when it cannot be brought this way."""
        self._session = self._daemon.open(0, self.words, self._deadline)
        self._session.prepare({"state": state})  # Fails if the state cannot be captured.
        words.say(self._ask["id"], "job", **self.words)
        ready = words.hear(self._ask["id"], "ready", _soon(self._deadline))
        if "failed" in ready:
            raise errors.Unavailable(f"it cannot take part: {ready['failed']}")
        ticket = self._session.save(step, {"state": state}, wait=_soon(self._deadline).left())
        if not ticket:
            raise errors.Unavailable(f"send step {step}: the save {outcome_text(ticket.outcome)}")
        self._session.finish_capture()

    def finish(self, step, words):
        """When the daemon has sent it. `words`: a Store of the calling thread's own."""
        outcome = {}
        level = "committed" if len(self.words["nodes"]) == 1 else "replicated"
        try:
            self._session.wait(step, level, self._deadline.left())
        except errors.CheckpointError as error:
            outcome = {"failed": str(error)}
        self._session.abandon()
        if level == "replicated" or outcome:
            self._daemon.drop(self.job)  # On one node the receiver does it.
        words.say(self._ask["id"], "end", **outcome)

    def give_up(self):
        if self._session is not None:
            self._session.abandon()
        self._daemon.drop(self.job)


def receive(daemon, store, name, step, deadline):
    """The state; None: it comes another way, as the sender says. Raises CheckpointError."""
    words = {}
    try:
        words = store.hear(name, "job", deadline)
        if "job" not in words:
            return None
        end = _take_part(daemon, store, name, step, words, deadline)
        if "stock" in end:
            return None
        if "failed" in end:
            raise errors.Unavailable(f"receive step {step}: the sender failed: {end['failed']}")
        session = daemon.open_alone(words, deadline)
        try:
            return session.restore(step=step).items["state"]
        finally:
            session.abandon()
    finally:
        if "job" in words:
            daemon.drop(words["job"])
        store.say(name, "done")


def _take_part(daemon, store, name, step, words, deadline):
    """Rank 1's part of the job; returns how that of rank 0 ended."""
    try:
        session = daemon.open(1, words, deadline)
    except errors.CheckpointError as error:
        daemon.failure = error
        store.say(name, "ready", failed=str(error))
        end = store.hear(name, "end", deadline)
        if "stock" not in end:
            raise
        return end
    try:
        store.say(name, "ready")
        ticket = session.save(step, {}, wait=_soon(deadline).left())
        failure = None if ticket else errors.Unavailable(
            f"receive step {step}: the save {outcome_text(ticket.outcome)}"
        )  # fmt: skip
    except errors.CheckpointError as error:
        failure = error
    try:  # The reason may be that rank 0 did not come.
        end = store.hear(name, "end", deadline if failure is None else _soon(deadline))
    except errors.Unavailable as error:
        raise failure or error from None
    finally:
        session.abandon()
    daemon.failure = failure
    if failure is not None and "stock" not in end:
        raise failure
    return end


def _check_listens(nodes, rank):
    """Raises if the daemon of this one of two nodes is not where the other one looks for it."""
    if len(nodes) < 2:
        return
    host, _, port = nodes[rank].rpartition("@")[2].rpartition(":")
    soon = Deadline(LISTEN_SECONDS)
    while _is_free(host.strip("[]"), int(port)):
        if soon.is_over():
            raise errors.Unavailable(
                f"transfer: the daemon of this node is not at {host}:{port}: if it was started "
                "with another port or interface, `ckpt stop` ends it"
            )
        time.sleep(LOOK_EVERY)


def _is_free(host, port):
    """Whether nobody listens there. A connection would leave a warning in the daemon's log."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _text(deadline):
    return f"{int(deadline.left() * 1000)}ms"


def _soon(deadline):
    return Deadline(min(deadline.left(), SOON_SECONDS))
