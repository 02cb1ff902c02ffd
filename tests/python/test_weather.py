"""Goal: whatever the options are and whatever happens to daemons, disks and files, a job restores
what it saved, loses no step that was promised, and stores steps again when the weather is good.

Method: ranks of one job live again and again, each time by other options, on other nodes and in
other numbers. Daemons are killed and stopped, the disk is full or read-only, files rot, and tools
work beside. Each state says which steps led to it, so that one of an abandoned line is noticed.
CKPT_WEATHER_SEEDS names seeds, and CKPT_WEATHER_LIVES says how many lives each has.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import bucket_server
import pytest
import weather
from trainers import ports, weather_rank

SEEDS = os.environ.get("CKPT_WEATHER_SEEDS", "1 2").split()
LIVES = int(os.environ.get("CKPT_WEATHER_LIVES", "8"))
BEGIN_SECONDS = 150
STORE_SECONDS = 60
END_SECONDS = 90
START = "from trainers import weather_rank; import sys; weather_rank.main(sys.argv[1])"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not weather.can_mount(), reason="it mounts a disk, which needs root"),
]


class Ranks:
    """The processes of one life, and what they have said."""

    def __init__(self, life, job, site):
        self.life, self._site = life, site
        self._events, self._read = site.root / f"events-{life.number}", 0
        self.events = []
        barrier = site.root / f"barrier-{life.number}"
        barrier.write_bytes(bytes(weather_rank.BARRIER_BYTES))
        self._events.touch()
        self.processes = [self._start(rank, job, barrier) for rank in range(life.world)]

    def _start(self, rank, job, barrier):
        life, site = self.life, self._site
        spec = {
            "rank": rank, "world": life.world, "life": life.number, "events": str(self._events),
            "barrier": str(barrier), "columns": job.columns, "frozen": job.frozen,
            "steps": life.steps, "pause": life.pause, "directory": str(site.places[job.place][0]),
            "options": life.options | {"node": life.places[rank]},
        }  # fmt: skip
        with open(site.root / f"life-{life.number}-rank-{rank}.log", "w") as log:
            return subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(spec)], stdout=log, stderr=log,
                env=os.environ | site.environment(life.places[rank]),
                cwd=pathlib.Path(__file__).parent,
            )  # fmt: skip

    def listen(self):
        with open(self._events) as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        self.events += map(json.loads, whole.splitlines())

    def said(self, what):
        return [event for event in self.events if event["is"] == what]

    def wait_until(self, holds, seconds):
        """False: it does not hold after so long, or a rank has ended."""
        deadline = time.monotonic() + seconds
        while not holds():
            is_over = self.have_ended(any) or time.monotonic() > deadline
            self.listen()
            if is_over:
                return holds()
            time.sleep(0.02)
        return True

    def have_ended(self, which):
        return which(process.poll() is not None for process in self.processes)

    def end(self, number):
        """After SIGTERM they end together, and else some of them may live a moment longer."""
        for process in self.processes:
            process.send_signal(number)
        deadline = time.monotonic() + END_SECONDS
        while number == signal.SIGTERM and time.monotonic() < deadline:
            if self.have_ended(all):
                break
            time.sleep(0.02)
        for process in self.processes:
            process.kill()
            process.wait()
        self.listen()


class Oracle:
    """Keeps the promises of the lives so far."""

    def __init__(self):
        self._line = {}  # By step, the lineage of the state that was saved.
        self._committed = self._durable = 0
        self.has_memory = self.has_files = True

    def begin(self, ranks):
        """Checks what they have restored."""
        assert not ranks.said("error"), ranks.said("error")
        begun = ranks.said("began")
        assert len(begun) == ranks.life.world, "a rank does not begin"
        assert all(event["is_right"] for event in begun), f"wrong bytes: {begun}"
        states = {(event["step"], event["lineage"]) for event in begun}
        assert len(states) == 1, f"the ranks begin with several states: {states}"
        step, lineage = states.pop()
        assert step == 0 or self._line.get(step) == lineage, f"step {step} is of another line"
        promised = max(self._committed if self.has_memory else 0, self._durable)
        assert step >= (promised if self.has_files else 0), f"{step}, and {promised} was promised"
        self._line = {at: of for at, of in self._line.items() if at <= step}
        self._committed, self._durable = step, min(self._durable, step)

    def end(self, ranks, faults):
        self._line |= {event["step"]: event["lineage"] for event in ranks.said("step")}
        for event in ranks.said("levels"):
            self._committed = max(self._committed, event["committed"] or 0)
            self._durable = max(self._durable, event["durable"] or 0)
        self.has_memory, self.has_files = not faults.take_memory, not faults.take_files

    def __str__(self):
        newest = max(self._line, default=0)
        return f"step {newest}, committed {self._committed}, durable {self._durable}"


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    yield from bucket_server.serve(bucket_server.start_moto, monkeypatch, tmp_path)


@pytest.fixture
def site(tmp_path, programs, bucket):
    reserved = {node: ports.reserve() for node in weather.HOSTS}
    found = weather.Site(tmp_path, programs, reserved, bucket)
    yield found
    found.close()
    for port in reserved.values():
        port.close()


def live(ranks, dice, faults, oracle):
    """From the start of the processes to their end."""
    began = ranks.wait_until(
        lambda: len(ranks.said("began") + ranks.said("error")) == ranks.life.world, BEGIN_SECONDS
    )
    oracle.begin(ranks)
    assert began
    bad_weather_ends = time.monotonic() + dice.uniform(1.5, 5)
    while time.monotonic() < bad_weather_ends and not ranks.have_ended(any):
        time.sleep(dice.uniform(0.2, 1))
        faults.one(ranks.life.nodes)
    ranks.listen()
    newest = max((event["step"] for event in ranks.said("step")), default=0)
    if ranks.life.must_store:
        is_stored = ranks.wait_until(
            lambda: any((event["durable"] or 0) > newest for event in ranks.said("levels")),
            STORE_SECONDS,
        )
        assert is_stored, f"no step after {newest} is stored"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_in_rough_weather_loses_nothing_that_was_promised(site, seed):
    dice, oracle = weather.dice_of(seed), Oracle()
    job, world = weather.Job(dice), 0
    print(f"seed {seed}: {job}")
    for number in range(LIVES):
        life = weather.Life(number, dice, job, site, world)
        faults, ranks = weather.Faults(dice, site, job.place), Ranks(life, job, site)
        print(life, flush=True)
        # The memory of a node that is not in the list does not count.
        oracle.has_memory &= set(job.nodes) == set(life.nodes)
        try:
            live(ranks, dice, faults, oracle)
        finally:
            ranks.end(signal.SIGTERM if life.is_told_to_end else signal.SIGKILL)
        lost = [event["text"] for event in ranks.said("error")]
        # A daemon that died may have had the newest step alone, which close() says.
        assert all("only in the memory of a daemon that died" in text for text in lost), lost
        if dice.random() < 0.25:
            for node in job.nodes:
                faults.daemon_dies(node)
        oracle.end(ranks, faults)
        print(f"   {oracle}; {faults.done}", flush=True)
        world = life.world
