"""Goal: a job goes on with other numbers of ranks, one after the other, whenever its ranks die: all
elements come back as the last committed step had them.

Method: real processes divide a table among them, and all of them are killed: before the restore,
after it, and once a step is committed. The daemons' memory is all that outlives them; some of it is
damaged, lost, or away for a while.
"""

import os
import re
import signal
import subprocess

import numpy
import pytest
from test_healing import daemon_of, flip_in_memory
from trainers import ports


class Worlds:
    def __init__(self, trainer):
        self._trainer = trainer

    def run(self, ranks, end, *words, places=()):
        """Starts ranks, kills all of them once each has said the words, and returns the output."""
        process = self._trainer("worlds.py", str(ranks), end, *places)
        process.wait_until(lambda: process.log.read_text().count(" ".join(words)) == ranks)
        for number in re.findall(r"^process (\d+)$", process.log.read_text(), re.MULTILINE):
            os.kill(int(number), signal.SIGKILL)
        return process.finish()


@pytest.fixture
def worlds(trainer):
    return Worlds(trainer)


def restored(step, saved_by):
    return f"restored {step} saved by {saved_by} same"


def test_four_ranks_then_three_then_five_with_kills_in_between(worlds):
    assert worlds.run(4, "committed", "committed 1").count("nothing") == 4
    worlds.run(3, "asks", "asks")
    worlds.run(3, "restored", restored(1, saved_by=4))  # Before they commit a step of their own.
    output = worlds.run(3, "committed", "committed 2")
    assert output.count(restored(1, saved_by=4)) == 3
    worlds.run(5, "asks", "asks")
    worlds.run(5, "restored", restored(2, saved_by=3))
    output = worlds.run(5, "committed", "committed 3")
    assert output.count(restored(2, saved_by=3)) == 5
    worlds.run(3, "restored", restored(3, saved_by=5))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 6, 8])
def test_any_number_of_ranks_has_what_four_had(worlds, count):
    worlds.run(4, "committed", "committed 1")
    worlds.run(count, "restored", restored(1, saved_by=4))


class Nodes:
    """The daemons of nodes, and worlds whose ranks are on some of them."""

    def __init__(self, worlds, root, monkeypatch):
        self._worlds, self._root, self._monkeypatch = worlds, root, monkeypatch
        self._reserved = {name: ports.reserve() for name in "ABCD"}
        self._addresses = {name: f"{name}@127.0.0.{host}:{port.getsockname()[1]}" for
                           host, (name, port) in enumerate(self._reserved.items(), 2)}  # fmt: skip

    def run(self, places, end, *words):
        nodes = ",".join(self._addresses[name] for name in sorted(set(places)))
        self._monkeypatch.setenv("LIBCKPT_NODES", nodes)
        return self._worlds.run(len(places), end, *words, places=(places, str(self._root)))

    def daemon(self, name):
        return daemon_of(self._root / name)

    def runtimes(self):
        return [path for path in self._root.iterdir() if path.is_dir()]

    def close(self):
        for port in self._reserved.values():
            port.close()


@pytest.fixture
def nodes(worlds, tmp_path, programs, monkeypatch):
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", str(programs / "ckptd"))
    monkeypatch.setenv("LIBCKPT_NICE", "0")
    secret = tmp_path / "secret"
    secret.write_text("a secret of the two nodes of this test\n")
    secret.chmod(0o600)
    monkeypatch.setenv("LIBCKPT_SECRET_FILE", str(secret))
    root = tmp_path / "nodes"
    root.mkdir()
    nodes = Nodes(worlds, root, monkeypatch)
    yield nodes
    for runtime in nodes.runtimes():
        subprocess.run([programs / "ckpt", "stop", "--no-flush", "--runtime-dir", runtime],
                       capture_output=True, timeout=60, check=False)  # fmt: skip
    nodes.close()


def table(step):  # As in trainers/worlds.py.
    return numpy.arange(61 * 50, dtype=numpy.float64).reshape(61, 50) + 10_000 * step


@pytest.mark.parametrize("places", ["AA", "AAA"])
def test_parts_of_a_step_that_no_memory_has_come_from_storage(nodes, places, tmp_path, monkeypatch):
    monkeypatch.setenv("LIBCKPT_DIR", str(tmp_path / "stored"))
    monkeypatch.setenv("LIBCKPT_REPLICAS", "1")
    nodes.run("AAAB", "stored", "stored 1")
    os.kill(nodes.daemon("B"), signal.SIGKILL)
    output = nodes.run(places, "restored", restored(1, saved_by=4))
    found = dict(re.findall(r"^rank (\d) from (\w+ \d+)$", output, re.MULTILINE))
    last = len(places) - 1
    source, stored = found.pop(str(last)).split()
    # Rank 3 had the last quarter of both tables, which the last rank here wants.
    lost = table(1)[45:].nbytes + table(1).ravel()[2287:].nbytes
    assert (source, int(stored)) == ("storage", lost)
    assert found == {str(rank): "own_memory 0" for rank in range(last)}


def sources(output):
    return set(re.findall(r"^rank \d from (\w+) \d+$", output, re.MULTILINE))


def test_the_same_ranks_in_another_order_have_what_their_numbers_saved(nodes):
    nodes.run("AB", "committed", "committed 1")
    output = nodes.run("BA", "restored", restored(1, saved_by=2))
    assert sources(output) == {"own_memory"}  # Each node has a copy of the other's shard.


@pytest.mark.slow
def test_worlds_move_to_other_nodes_one_after_the_other_and_all_at_once(
    nodes, tmp_path, monkeypatch
):
    monkeypatch.setenv("LIBCKPT_DIR", str(tmp_path / "stored"))
    nodes.run("AB", "committed", "committed 1")
    output = nodes.run("BC", "committed", "committed 2")
    assert output.count(restored(1, saved_by=2)) == 2
    assert "storage" not in sources(output)
    os.kill(nodes.daemon("A"), signal.SIGKILL)
    os.kill(nodes.daemon("B"), signal.SIGKILL)
    output = nodes.run("CD", "stored", "stored 3")
    assert output.count(restored(2, saved_by=2)) == 2
    assert "storage" not in sources(output)
    output = nodes.run("AB", "restored", restored(3, saved_by=2))
    assert sources(output) == {"storage"}


@pytest.mark.slow
def test_worlds_on_two_nodes_with_damage_a_lost_node_and_one_that_comes_back(nodes):
    nodes.run("AABB", "committed", "committed 1")
    assert flip_in_memory(nodes.daemon("A"), table(1)[3].tobytes()) >= 1
    nodes.run("ABB", "restored", restored(1, saved_by=4))
    output = nodes.run("BAB", "committed", "committed 2")
    assert output.count(restored(1, saved_by=4)) == 3

    os.kill(nodes.daemon("B"), signal.SIGKILL)
    output = nodes.run("AABBA", "committed", "committed 3")
    assert output.count(restored(2, saved_by=3)) == 5

    away = nodes.daemon("A")
    os.kill(away, signal.SIGSTOP)
    try:
        output = nodes.run("BB", "committed", "committed 4")
        assert output.count(restored(3, saved_by=5)) == 2
    finally:
        os.kill(away, signal.SIGCONT)
    output = nodes.run("ABBA", "committed", "committed 5")
    assert output.count(restored(4, saved_by=2)) == 4
    assert nodes.daemon("A") == away
