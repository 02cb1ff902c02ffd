"""Goal: a byte that flips in a daemon's memory, or in a stored file, is found before anybody needs
it, and is made good again; a restore from what was healed has every element.

Method: daemons that verify every second, a byte written into a daemon's shared memory behind its
back, or into a file. Then everything else is lost.
"""

import json
import os
import pathlib
import signal
import subprocess
import time

import numpy
import pytest
from test_arrays import at_once, lose_memory
from trainers import ports

import libckpt


def until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline


def content(rank):
    return numpy.random.default_rng(rank).standard_normal(200_000)


def healed(session):
    return session.status()["daemon"]["healed"]


def daemon_of(runtime):
    return json.loads((pathlib.Path(runtime) / "ckptd.json").read_text())["pid"]


def flip_in_memory(process, pattern):
    """In each place of the daemon's shared memory where the pattern lies. Returns how many."""
    places = 0
    for entry in pathlib.Path(f"/proc/{process}/fd").iterdir():
        if "memfd:" not in os.readlink(entry):
            continue
        with open(entry, "r+b") as memory:
            found = memory.read().find(pattern)
            if found >= 0:
                memory.seek(found)
                memory.write(bytes([pattern[0] ^ 1]))
                places += 1
    return places


@pytest.fixture
def verified(monkeypatch):
    monkeypatch.setenv("LIBCKPT_VERIFY_EVERY", "1s")
    monkeypatch.setenv("LIBCKPT_VERIFY_STORED", "true")


def test_a_damaged_file_is_written_anew_from_memory(verified, job, tmp_path, programs):
    options = {"dir": str(tmp_path / "run"), "save_storage_interval": 1}
    session = job(**options)
    assert session.save(7, {"weights": content(0)})
    session.wait(7, "durable")
    path = tmp_path / "run" / "step-000000007" / "rank-00000.safetensors"
    good = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(len(good) - 1000)
        file.write(bytes([good[-1000] ^ 1]))
    until(lambda: healed(session)["files"] == 1)
    assert path.read_bytes() == good
    assert "step 7 rank 0 were damaged" in healed(session)["newest"]
    told = subprocess.run([programs / "ckpt", "status"], capture_output=True, text=True, timeout=60)
    assert "  healed: the files of step 7 rank 0 were damaged" in told.stdout
    assert subprocess.run([programs / "ckpt", "verify", path.parent], timeout=60).returncode == 0
    lose_memory([session], programs)
    restored = job(**options).restore()
    assert restored.source == "storage"
    assert numpy.array_equal(restored.items["weights"], content(0))


@pytest.fixture
def two_nodes(verified, tmp_path, programs, monkeypatch):
    """Opens a rank on each of two nodes, which have a daemon each."""
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", str(programs / "ckptd"))
    monkeypatch.setenv("LIBCKPT_NICE", "0")
    reserved = [ports.reserve() for _ in "AB"]
    nodes = [f"{name}@{host}:{port.getsockname()[1]}" for name, host, port in
             zip("AB", ("127.0.0.2", "127.0.0.3"), reserved, strict=True)]  # fmt: skip
    secret = tmp_path / "secret"
    secret.write_text("a secret of the two nodes of this test\n")
    secret.chmod(0o600)
    runtimes = [tmp_path / "of A", tmp_path / "of B"]
    opened = []

    def open_sessions():
        for rank, runtime in enumerate(runtimes):
            opened.append(libckpt.init(
                "job", rank=rank, world_size=2, node="AB"[rank], nodes=nodes,
                secret_file=str(secret), runtime_dir=str(runtime), raise_on_error=True,
            ))  # fmt: skip
        return opened[-2:]

    yield open_sessions, runtimes
    for session in opened:
        session.abandon()
    for runtime in runtimes:
        subprocess.run([programs / "ckpt", "stop", "--no-flush", "--runtime-dir", runtime],
                       capture_output=True, timeout=60, check=False)  # fmt: skip
    for port in reserved:
        port.close()


def test_a_damaged_replica_is_sent_again(two_nodes):
    open_sessions, runtimes = two_nodes
    sessions = open_sessions()
    at_once(sessions, lambda rank, session: session.save(7, {"weights": content(rank)}))
    at_once(sessions, lambda _, session: session.wait(7, "committed"))
    pattern = content(0)[1000:1010].tobytes()
    assert flip_in_memory(daemon_of(runtimes[1]), pattern) == 1
    until(lambda: healed(sessions[1])["copies"] == 1)
    assert healed(sessions[1])["newest"].endswith("came again from node A")
    assert healed(sessions[0])["copies"] == 0
    os.kill(daemon_of(runtimes[0]), signal.SIGKILL)
    for session in sessions:
        session.abandon()
    answers = at_once(open_sessions(), lambda _, session: session.restore())
    assert answers[0].source == "peer_memory"
    for rank, answer in enumerate(answers):
        assert answer.step == 7
        assert numpy.array_equal(answer.items["weights"], content(rank))
