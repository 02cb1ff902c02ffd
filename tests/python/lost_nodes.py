"""Ranks of any door on nodes A and B, of which one is lost with its daemon and all its memory.

A Job says how a door's trainer is started and what its ranks print. All of them lose the same, and
must have the same back. Nodes are those of test_ranks.Cluster, and each rank is on the node of
its letter.
"""

import json
import os
import re
import signal

import pytest
from test_ranks import process_of, said

STEPS, LOST_AT = 8, 5
RESUMED = re.compile(r"libckpt: resumes step (\d+) from ([^;\n]+)(.*)")


class Job:
    """Ranks that hold once a step is in the memory of all nodes that are to have it."""

    alike = {}  # Options with which any number of ranks computes the same.
    tolerance = {"rel": 1e-5}  # Of sums that another number of ranks makes in another order.

    def __init__(self, cluster, folder, is_alike=False, **options):
        self.cluster, self.folder = cluster, folder
        self.options = options | (self.alike if is_alike else {})
        self.environment = {}  # Of all ranks.

    def start(self, nodes, hold=0):
        """Ranks that train, from what there is, and hold at that step."""
        raise NotImplementedError

    def whole(self, nodes):
        """The log of ranks that nobody disturbs."""
        raise NotImplementedError

    def held(self, rank):
        """Said by a rank that holds."""
        return f"r{rank} made {LOST_AT}"

    def began(self, log, rank):
        return int(said(log, rank, "began at")[0][0])

    def losses(self, log, rank):
        """By step, what the rank says of its loss."""
        return {int(step): float(loss) for step, loss in said(log, rank, "loss")}

    def lose(self, nodes, lost):
        """The log of a launch that holds, until one of its nodes is lost."""
        process = self.start(nodes, hold=LOST_AT)
        for rank in range(len(nodes)):
            process.wait_until_said(self.held(rank))
        log = process.log.read_text()
        ranks = {rank: process_of(log, rank) for rank in range(len(nodes))}
        self.cluster.lose(lost, *(ranks[rank] for rank in ranks if nodes[rank] == lost))
        for rank in ranks:
            if nodes[rank] != lost:
                os.kill(ranks[rank], signal.SIGKILL)  # As a launcher ends it.
        process.wait()
        return process.log.read_text()

    def check_losses(self, log, ranks, whole, ranks_of_whole):
        """Each step that was made is made as in the whole run."""
        began = self.began(log, 0)
        expected = [self.losses(whole, rank) for rank in range(ranks_of_whole)]
        found = [self.losses(log, rank) for rank in range(ranks)]
        steps = set(range(began + 1, STEPS + 1))
        for each in found:
            assert each.keys() >= steps
        if ranks == ranks_of_whole:
            for rank in range(ranks):
                assert found[rank] == {step: expected[rank][step] for step in found[rank]}
        else:
            assert means(found, steps) == pytest.approx(means(expected, steps), **self.tolerance)


def means(of_ranks, steps):
    return {step: sum(each[step] for each in of_ranks) / len(of_ranks) for step in steps}


def check_resumed(job, log, nodes, left):
    """All ranks began at the step that was held; where a rank is on another node than `left`, it
    had its bytes from there, and its line says so."""
    for rank in range(len(nodes)):
        assert job.began(log, rank) == LOST_AT, log[-4000:]
    lines = RESUMED.findall(log)
    assert lines, log[-4000:]
    assert {int(step) for step, _, _ in lines} == {LOST_AT}
    assert all(rest.endswith("; no step was lost") for _, _, rest in lines), lines
    sources = {source for _, source, _ in lines}
    assert sources <= {"own memory", f"node {left}"}, lines


class Zero(Job):
    """An engine of DeepSpeed."""

    tolerance = {"abs": 1e-4}

    def _start(self, nodes, name, **more):
        self.cluster.program = "zero_nodes.py"
        given = {"steps": STEPS, "batch": 16, "micro": 4, "waits": 60, "attach": {"replicas": 2},
                 "folder": str(self.folder / name), **self.options, **more}  # fmt: skip
        return self.cluster.start(nodes, name, json.dumps(given), **self.environment)

    def start(self, nodes, hold=0):
        more = {"hold_at": hold} if hold else {"seed": 2}  # Of weights, which a restore replaces.
        return self._start(nodes, "job", **more)

    def whole(self, nodes):
        return self._start(nodes, "whole", stock=True).finish()

    def held(self, rank):
        return f"r{rank} {'saved' if 'save_at' in self.options else 'made'} {LOST_AT} "

    def losses(self, log, rank):
        return {int(step): float(loss) for step, _, loss, _ in said(log, rank, "made")}


class Megatron(Job):
    """A job of megatron-core; `tensor`: parallel ranks, None: all that there are."""

    def _start(self, nodes, name, hold=0):
        self.cluster.program = "gpt.py"
        options = {**self.options}
        if options.get("tensor", 1) is None:
            options["tensor"] = len(nodes)
        if "storage" in options:
            options["directory"] = str(self.folder / name)
        return self.cluster.start(nodes, name, STEPS, json.dumps(options), HOLD_AT=str(hold),
                                  **self.environment)  # fmt: skip

    def start(self, nodes, hold=0):
        return self._start(nodes, "job", hold)

    def whole(self, nodes):
        return self._start(nodes, "whole").finish()


class Titan(Job):
    """torchtitan's manager."""

    alike = {"alike": True}

    def _start(self, nodes, name, kind, hold=0):
        self.cluster.program = "titan.py"
        options = json.dumps({"interval": 50, **self.options})
        folder = str(self.folder / name)
        return self.cluster.start(nodes, folder, STEPS, kind, options, HOLD_AT=str(hold))

    def start(self, nodes, hold=0):
        return self._start(nodes, "job", "libckpt", hold)

    def whole(self, nodes):
        return self._start(nodes, "whole", "stock").finish()


class Named(Job):
    """A program of a training in a folder: SCRIPT FOLDER KIND OPTIONS."""

    script = kind = None

    def _options(self, nodes):
        return self.options

    def _start(self, nodes, name, kind, **more):
        given = {"nodes": self.cluster.environments(nodes, **self.environment), "ranks": len(nodes)}
        options = json.dumps({**given, **self._options(nodes), **more})
        return self.cluster.trainer(self.script, str(self.folder / name), kind, options)

    def start(self, nodes, hold=0):
        return self._start(nodes, "job", self.kind, **({"hold": hold} if hold else {}))

    def whole(self, nodes):
        return self._start(nodes, "whole", "stock").finish()

    def held(self, rank):
        return f"r{rank} held {LOST_AT}"

    def began(self, log, rank):
        return int(said(log, rank, "began")[0][0])

    def losses(self, log, rank):
        return {int(step): float(loss) for step, loss in said(log, rank, "made")}


class Accelerate(Named):
    script, kind = "acc.py", "libckpt"
    alike, tolerance = {"alike": True}, {"rel": 1e-4}

    def _options(self, nodes):
        return {"steps": STEPS, "every": 50, "waits": 60, **self.options}


class Lightning(Named):
    script, kind = "fit.py", "libckpt"
    alike, tolerance = {"alike": True}, {"rel": 1e-4}

    def _options(self, nodes):
        return {"steps": STEPS, "every": 50, "waits": 60, **self.options}


class Transformers(Named):
    """A Trainer, of whose ranks the first one speaks."""

    script, kind = "hf.py", "wrapper"
    alike, tolerance = {"dropout": 0.0}, {"rel": 1e-4}

    def _options(self, nodes):
        return {"max_steps": STEPS, "save_steps": 50, "resume": True,
                "per_device_train_batch_size": 4 // len(nodes), **self.options}  # fmt: skip

    def whole(self, nodes):
        return self._start(nodes, "whole", "stock", resume=None).finish()

    def held(self, rank):
        return f"held {LOST_AT}\n"

    def began(self, log, rank):
        return int(re.search(r"^made (\d+)$", log, re.MULTILINE).group(1)) - 1

    def losses(self, log, rank):
        """All that the Trainer has logged, also before it was lost."""
        (line,) = re.findall(r"^each (.*)$", log, re.MULTILINE)
        return {step: float(loss) for step, loss in enumerate(line.split(), 1)}
