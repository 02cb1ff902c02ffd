"""Goal: ranks under DistributedDataParallel capture each its share, and all of them come back.

Method: real ranks over gloo, each on a "node" of its own: a network namespace where that is
allowed, a runtime directory, a daemon. One node is killed with its memory; the job comes back on
another, or with other ranks.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from trainers import ports  # noqa: E402

STEPS = 12
OF_ALL = ("model.", "optimizer.")  # Ranks share these out.
ADAM = ("step", "exp_avg", "exp_avg_sq")
ROOT = pathlib.Path(__file__).parents[2]


class Cluster:
    """Nodes by name, as examples/training/nodes.sh makes them, and jobs of ranks on them."""

    program = "ranks.py"

    def __init__(self, scratch, programs, trainer):
        self.scratch, self.programs, self.trainer = scratch, programs, trainer
        self._shell = subprocess.Popen(["bash"], cwd=ROOT, text=True, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)  # fmt: skip
        self.do(f". examples/training/nodes.sh; nodes_open '{scratch}'")
        self.spaces = self.do('echo "$nodes_prefix"')
        self.port = self.do('echo "$nodes_port"')
        self._reserved = []
        self._environments = {}

    def do(self, command):
        """The output of the shell."""
        self._shell.stdin.write(f"{command}\necho '<end>'\n")
        self._shell.stdin.flush()
        said = "".join(iter(self._shell.stdout.readline, "<end>\n"))
        return said.strip()

    def node(self, name):
        """The environment of a process on the node."""
        if name not in self._environments:
            self.do(f"node_add {name}")
            address = self.do(f'echo "${{node_address[{name}]}}"')
            self._environments[name] = environment = {
                "LIBCKPT_NODE": name,
                "LIBCKPT_RUNTIME_DIR": str(self.scratch / name),
                "LIBCKPT_DAEMON_PATH": str(self.programs / "ckptd"),
                "ADDRESS": address,
            }
            if self.spaces:  # The address is found out by the ranks themselves.
                space = f"/run/netns/{self.spaces}-{name}"
                environment |= {"SPACE": space, "GLOO_SOCKET_IFNAME": "eth0"}
            else:
                environment |= {"LIBCKPT_INTERFACE": address, "LIBCKPT_PORT": self.port}
        return self._environments[name]

    def environments(self, nodes, **environment):
        """Those of the ranks of a new launch, each on the node of its place."""
        self._reserved.append(ports.reserve())
        common = {
            "WORLD_SIZE": str(len(nodes)),
            "MASTER_ADDR": self.node(nodes[0])["ADDRESS"],
            "MASTER_PORT": str(self._reserved[-1].getsockname()[1]),
            **environment,
        }
        return [self.node(name) | common for name in nodes]

    def start(self, nodes, job, *arguments, **environment):
        each = json.dumps(self.environments(nodes, **environment))
        return self.trainer(self.program, each, job, *map(str, arguments))

    def lose(self, name, *processes):
        """The node with its trainers, its daemon and all its memory."""
        if self.spaces:
            self.do(f'ip -n "$nodes_prefix-net" link del port-{name}')
        for process in processes:
            os.kill(process, signal.SIGKILL)
        self.do(f"node_lose {name} 2>&1")

    def stop(self, name):
        """Its daemon, after a flush."""
        environment = {**os.environ, "LIBCKPT_RUNTIME_DIR": str(self.scratch / name)}
        subprocess.run([self.programs / "ckpt", "stop"], env=environment, timeout=60, check=True,
                       capture_output=True)  # fmt: skip

    def close(self):
        """The rest of it."""
        for reserved in self._reserved:
            reserved.close()
        left = self.do("nodes_close 2>&1")
        self._shell.communicate("exit\n", timeout=60)
        return left


@pytest.fixture
def cluster(tmp_path, programs, trainer):
    found = Cluster(tmp_path, programs, trainer)
    yield found
    left = found.close()
    assert "processes" not in left, left  # Other things may be slow to go on a busy machine.


def said(log, rank, word):
    """The words behind `word` in each such line of the rank."""
    prefix = f"r{rank} {word} "
    return [line[len(prefix) :].split() for line in log.splitlines() if line.startswith(prefix)]


def began(log, rank):
    """(step, digest) as the rank began."""
    step, digest = said(log, rank, "began at")[0]
    return int(step), digest


def process_of(log, rank):
    lines = [line.split() for line in log.splitlines() if line.startswith("process ")]
    return next(int(process) for _, number, process in lines if int(number) == rank)


def results(log, ranks=2):
    return [(said(log, r, "losses"), said(log, r, "weights")) for r in range(ranks)]


def states(log):
    """By step, the digest of what rank 0 had."""
    return {int(step): digest for step, digest, *_ in said(log, 0, "made")}


def stock_digest(directory):
    """As the trainer takes it, of the newest checkpoint, which is read without libckpt."""
    from safetensors.torch import load_file
    from trainers import ranks

    files = sorted(max(directory.glob("step-*")).glob("rank-*.safetensors"))
    assert len(files) == 2
    found = {}
    for file in files:
        part = load_file(file)
        assert not {name for name in found.keys() & part.keys() if name.startswith(OF_ALL)}
        found |= part
    model = ranks.make_model()
    names = [name for name, _ in model.named_parameters()]
    parameters = {name: found[f"model.{name}"] for name in names}
    state = {number: {key: found[f"optimizer.state.model.{name}.{key}"] for key in ADAM}
             for number, name in enumerate(names)}  # fmt: skip
    buffers = {name: found[f"model.{name}"] for name, _ in model.named_buffers()}
    return ranks.digest(parameters, state, buffers)


def test_a_node_is_lost_with_its_memory_and_the_job_ends_as_if_it_had_not(cluster):
    whole = cluster.start("AB", "whole", STEPS).finish()
    expected = results(whole)
    assert all(losses and weights for losses, weights in expected)
    assert all(float(said(whole, rank, "share")[0][0]) < 0.65 for rank in (0, 1))
    for rank in (0, 1):  # The Slots of the beginning had room for all that came.
        before, after = said(whole, rank, "slots")
        assert before == after

    job = cluster.start("AB", "job", STEPS, HOLD_AT="7")
    job.wait_until_said("r0 made 7 ")
    log = job.log.read_text()
    cluster.lose("B", process_of(log, 1))
    os.kill(process_of(log, 0), signal.SIGKILL)  # As torchrun ends it.
    job.wait()
    committed = int(said(log, 0, "made")[-1][2])
    assert committed >= 5

    log = cluster.start("AC", "job", STEPS).finish()
    step, digest = began(log, 0)
    assert step >= committed
    assert said(log, 0, "source")[0] == ["own_memory", "2"]
    assert said(log, 1, "source")[0] == ["peer_memory", "2"]
    assert began(log, 1) == (step, digest)
    assert states(job.log.read_text())[step] == digest
    assert results(log) == expected


def kill_all(log, ranks, job):
    """The trainers, while their daemons live."""
    for rank in range(ranks):
        os.kill(process_of(log, rank), signal.SIGKILL)
    job.wait()


def check_began_from_memory(log, ranks, saved_by, before):
    """All began with what was made at one step, which `before`, a log, tells."""
    step, digest = began(log, 0)
    assert states(before)[step] == digest
    for rank in range(ranks):
        assert began(log, rank) == (step, digest)
        source, world_size = said(log, rank, "source")[0]
        assert (source in ("own_memory", "peer_memory"), world_size) == (True, str(saved_by))
        assert said(log, rank, "items of")[0] == [str(rank % saved_by)]
        assert said(log, rank, "rows")[0] == [str(step)]
    return step


def test_other_numbers_of_ranks_go_on_straight_from_memory(cluster):
    """2 -> 3 -> 2 -> 1: all trainers die, and a node is new; then it is lost with its memory."""
    job = cluster.start("AB", "job", STEPS, HOLD_AT="5")
    job.wait_until_said("r0 made 5 ")
    two = job.log.read_text()
    kill_all(two, 2, job)
    job = cluster.start("ABC", "job", STEPS, HOLD_AT="8")
    job.wait_until_said("r0 made 8 ")
    three = job.log.read_text()
    assert check_began_from_memory(three, 3, 2, two) >= 3
    kill_all(three, 3, job)
    cluster.do("node_lose C 2>&1")
    log = cluster.start("BA", "job", STEPS).finish()
    assert check_began_from_memory(log, 2, 3, three) >= 6
    assert said(log, 0, "made")[-1][0] == str(STEPS)
    # One rank alone gets what both captured for all.
    alone = cluster.start("A", "job", STEPS + 1).finish()
    assert check_began_from_memory(alone, 1, 2, log) > 6


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_another_number_of_ranks_begins_with_the_state_of_the_step(cluster, tmp_path, count):
    directory = tmp_path / "dir"
    job = cluster.start("AB", "job", 8, directory).finish()
    for name in "AB":
        cluster.stop(name)
    assert stock_digest(directory) in states(job).values()
    log = cluster.start("ABC"[:count], "job", 20, directory).finish()
    step, digest = began(log, 0)
    assert step >= 4
    assert digest == states(job)[step]
    for rank in range(count):
        assert began(log, rank) == (step, digest)
        assert said(log, rank, "source")[0] == ["storage", "2"]
        assert said(log, rank, "items of")[0] == [str(rank % 2)]
        assert f"rank {rank} is new" not in log or rank == 2
    assert (f"rank 2 is new, step {step} was saved by 2 ranks" in log) == (count == 3)
    assert "its random generators were seeded with" in log or count == 1

    # And on from what these ranks captured and published.
    log = cluster.start("AB", "job", 21, directory).finish()
    assert began(log, 0)[0] == began(log, 1)[0] > step
    assert f"was saved by {'1 rank' if count == 1 else '3 ranks'}, this job has 2" in log
    assert said(log, 1, "source")[0] == ["storage", str(count)]


def test_damage_costs_another_number_of_ranks_one_step(cluster, tmp_path):
    directory = tmp_path / "dir"
    job = cluster.start("AB", "job", STEPS, directory).finish()
    for name in "AB":
        cluster.stop(name)
    older, newest = sorted(directory.glob("step-*"))[-2:]
    damaged = newest / "rank-00001.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    log = cluster.start("ABC", "job", STEPS, directory).finish()
    step = int(older.name.removeprefix("step-"))
    assert [began(log, rank) for rank in range(3)] == [(step, states(job)[step])] * 3
    assert log.count(f"step {int(newest.name.removeprefix('step-'))} is passed over") == 1


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--fsdp"]], ids=["ddp", "fsdp2"])
def test_the_example_runs_as_printed_and_torchrun_resumes_it_from_memory(more):
    example = ROOT / "examples" / "ddp_trainer.py"
    command = [sys.executable, example, "--demo", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rank 1 is killed at step 33" in done.stdout
    began = re.findall(r"(\d) rank\(s\), from step (\d+)", done.stdout)
    assert began[:2] == [("2", "0"), ("2", "0")]
    resumed = int(began[2][1])
    assert 20 < resumed <= 33
    assert f"restored step {resumed} from own memory" in done.stderr
    assert "the weights are the same" in done.stdout
    # Its steps take milliseconds: on a busy machine the last of them may find no Slot.
    ranks, last = began[3]
    assert ranks == "1"
    assert 50 <= int(last) <= 60
    assert f"step {last} was saved by 2 ranks, this job has 1" in done.stderr
