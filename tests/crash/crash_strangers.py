"""Strangers: daemons of another version, and processes of another user."""

import functools
import os
import socket
import stat
import threading

import other_version
from crash_lab import Failure, Lab, wait_until
from crash_labels import check_not_stalled
from crash_pair import free_port

SECONDS = 60
NOBODY = 65534
OTHER_DAEMON = os.path.abspath(other_version.__file__)
OTHER_LOCAL = f"libckpt {other_version.SOFTWARE} (local protocol {other_version.VERSION})"
OUR_LOCAL = "this is libckpt"
OTHER_PEER = f"the peer speaks protocol version {other_version.VERSION}, this daemon"


def must_say(where, said, *texts):
    for text in texts:
        if text not in said:
            raise Failure(f"{where}: '{text}' was not said, but: {said[-800:]}")


def wait_for_log(lab, text, node=""):
    wait_until(lambda: text in lab.daemon_log(node), SECONDS, f"the daemon to log '{text}'")


def opened_at_another_version(tools):
    """Nothing was lost yet: who opens hears it at once, with both versions."""
    with Lab(tools, "version-open") as lab:
        lab.daemon = OTHER_DAEMON
        trainer = lab.start_trainer("--steps", 5)
        if lab.wait(trainer) != 2:
            raise Failure(f"a trainer used another version: {trainer.events.lines()[-3:]}")
        must_say("open", trainer.log(), OTHER_LOCAL, OUR_LOCAL, "use one version on both sides")


def replaced_by_another_version(tools):
    """In mid-run training goes on, without checkpoints, and says so once."""
    with Lab(tools, "version-run") as lab:
        lab.start_daemon()
        lab.daemon = OTHER_DAEMON
        trainer = lab.start_trainer("--steps", 400, "--step-us", 2000)
        wait_until(lambda: trainer.events.newest("committed") >= 5, SECONDS, "five steps")
        lab.kill_daemon()
        lab.finish(trainer)
        check_not_stalled(trainer.events)
        must_say("the replaced daemon", trainer.log(), "no more checkpoints", OTHER_LOCAL,
                 OUR_LOCAL)
        if trainer.log().count("no more checkpoints") != 1:
            raise Failure(f"said more than once: {trainer.log_path}")


def peers_of_two_versions(tools):
    """Each refuses the other, and both say which versions they are."""
    with Lab(tools, "version-peer") as lab:
        ours, theirs = "127.0.0.2", "127.0.0.3"
        secret = os.path.join(lab.path, "secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("a secret of the two nodes of this test\n")
        our_port = free_port(ours)
        with socket.create_server((theirs, 0)) as listener:
            thread = threading.Thread(target=refuse_all, args=(listener,), daemon=True)
            thread.start()
            nodes = f"A@{ours}:{our_port},B@{theirs}:{listener.getsockname()[1]}"
            lab.start_daemon(node="A")
            lab.start_trainer("--rank", 0, "--world", 2, "--node", "A", "--nodes", nodes,
                              "--secret", secret, "--restore-ms", 60_000, node="A")
            wait_for_log(lab, OTHER_PEER, "A")
            must_say("the dialer", lab.daemon_log("A"), "peer=B not reached")
            said = dial_and_hear((ours, our_port))
            must_say("the listener, to the other", said, OTHER_PEER)
            wait_for_log(lab, "refused a connection", "A")
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)


def refuse_all(listener):
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.sendall(other_version.refusal())
            other_version.hear(connection)


def dial_and_hear(address):
    with socket.create_connection(address, SECONDS) as connection:
        connection.sendall(other_version.frame(other_version.HELLO, b""))
        return other_version.hear(connection).decode(errors="replace")


def another_user(tools):
    """The directory keeps him out; where somebody opened it to all, the daemon does."""
    if os.geteuid() != 0:
        print("skipped: another user: needs root", flush=True)
        return
    with Lab(tools, "user") as lab:
        lab.start_daemon()
        path = os.path.join(lab.runtime(), "ckptd.sock")
        found = as_nobody(path)
        if found != "PermissionError":
            raise Failure(f"another user's connection: {found}")
        for folder in (lab.path, lab.runtime()):
            os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o011)
        os.chmod(path, 0o666)
        found = as_nobody(path)
        if found != "closed without a word":
            raise Failure(f"another user was answered: {found}")
        wait_for_log(lab, f"of user {NOBODY}")
        must_say("the daemon", lab.daemon_log(), "refused process")
        # A trainer may not use a directory that others may enter, whoever they are.
        trainer = lab.start_trainer("--steps", 1)
        if lab.wait(trainer) != 2:
            raise Failure("a trainer used a directory that is open to others")
        must_say("the trainer", trainer.log(), "0700")
        os.chmod(lab.runtime(), 0o700)
        lab.finish(lab.start_trainer("--steps", 3, "--settle", "committed", "--close"))


def as_nobody(path):
    """The answer of the socket to a process of another user, from a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(SECONDS)
                connection.connect(path)
                said = other_version.hear(connection)
            found = f"said {said[:40]}" if said else "closed without a word"
        except OSError as error:
            found = type(error).__name__
        os.write(writing, found.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found


def tasks(tools, arguments):
    cases = {"another version at open": opened_at_another_version,
             "another version in mid-run": replaced_by_another_version,
             "peers of two versions": peers_of_two_versions,
             "another user": another_user}
    return [(name, functools.partial(case, tools)) for name, case in cases.items()]
