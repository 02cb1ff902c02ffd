"""Goal: whatever the options are and whatever happens to daemons, disks and files, a job restores
what it saved, loses no step that was promised, and stores steps again when the weather is good.

Method: ranks of one job live again and again, each time by other options, on other nodes and in
other numbers. Daemons are killed, stopped and replaced, the disk is full or read-only, files rot or
are removed, tools work beside, and ranks hang, die alone, or are taken for dead and wake in the
next life. Each state says which steps led to it, so that one of an abandoned line is noticed.
CKPT_WEATHER_SEEDS names seeds, and CKPT_WEATHER_LIVES says how many lives each has.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
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
        site.processes += self.processes

    def _start(self, rank, job, barrier):
        life, site = self.life, self._site
        spec = {
            "rank": rank, "world": life.world, "life": life.number, "events": str(self._events),
            "barrier": str(barrier), "columns": job.columns, "frozen": job.frozen,
            "history": job.history, "steps": life.steps, "pause": life.pause,
            "directory": str(site.places[life.place][0]),
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
        """After SIGTERM and Ctrl-C they end by themselves. After SIGSTOP they are still there."""
        for process in self.processes:
            process.send_signal(number)
        if number in (signal.SIGTERM, signal.SIGINT):
            deadline = time.monotonic() + END_SECONDS
            while not self.have_ended(all) and time.monotonic() < deadline:
                time.sleep(0.02)
        self.listen()
        if number != signal.SIGSTOP:
            self.kill()
            self.listen()

    def wake(self):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Oracle:
    """Keeps the promises of the lives so far."""

    def __init__(self):
        self._line = {}  # By step, the lineage of the state that was saved.
        self._committed = self._durable = 0
        self.has_memory = self.has_files = True

    def begin(self, ranks):
        """Checks what they have restored. False: they were killed before all of them had it, or
        there is nothing left that they could have."""
        errors = [event["text"] for event in ranks.said("error")]
        is_all_gone = not self.has_memory and not self.has_files
        if errors and is_all_gone and all(text.startswith("Corruption") for text in errors):
            return False
        assert not errors, errors
        begun = ranks.said("began")
        assert all(event["is_right"] for event in begun), f"wrong bytes: {begun}"
        if ranks.life.ends_at is not None and len(begun) < ranks.life.world:
            return False
        assert len(begun) == ranks.life.world, "a rank does not begin"
        states = {(event["step"], event["lineage"]) for event in begun}
        assert len(states) == 1, f"the ranks begin with several states: {states}"
        step, lineage = states.pop()
        assert step == 0 or self._line.get(step) == lineage, f"step {step} is of another line"
        of_memory = self._committed if self.has_memory else 0
        promised = max(of_memory, self._durable if self.has_files else 0)
        assert step >= promised, f"{step}, and {promised} was promised"
        self._line = {at: of for at, of in self._line.items() if at <= step}
        self._committed, self._durable = step, min(self._durable, step)
        self.has_memory = self.has_files = True
        return True

    def end(self, ranks, faults):
        self._line |= {event["step"]: event["lineage"] for event in ranks.said("step")}
        for event in ranks.said("levels"):
            self._committed = max(self._committed, event["committed"] or 0)
            self._durable = max(self._durable, event["durable"] or 0)
        if len(ranks.said("closed")) == ranks.life.world:  # It stores the newest step.
            self._durable, self.has_memory = self._committed, False
        self.has_memory &= not faults.take_memory
        self.has_files &= not faults.take_files

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


def live(ranks, dice, faults, oracle, stale):
    """From the start of the processes to their end; returns whether they began. `stale`: ranks of
    lives before, which some scheduler took for dead. They wake, and must not disturb."""
    life = ranks.life
    began = ranks.wait_until(
        lambda: len(ranks.said("began") + ranks.said("error")) == life.world,
        BEGIN_SECONDS if life.ends_at is None else life.ends_at,
    )
    if not oracle.begin(ranks):
        return False
    assert began
    for others in stale:
        others.wake()
    ends = time.monotonic() + dice.uniform(1.5, 5)
    beside = [faults.beside() for _ in range(dice.choice([0, 0, 1, 2]))]
    storms = [threading.Thread(target=each.storm, args=(life.nodes, ends)) for each in beside]
    for storm in storms:
        storm.start()
    faults.storm(life.nodes, ends)
    for storm in storms:
        storm.join()
    ranks.listen()
    newest = max((event["step"] for event in ranks.said("step")), default=0)
    if life.must_store and not faults.has_broken_the_job:
        is_stored = ranks.wait_until(
            lambda: any((event["durable"] or 0) > newest for event in ranks.said("levels")),
            STORE_SECONDS,
        )
        assert is_stored, f"no step after {newest} is stored"
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_in_rough_weather_loses_nothing_that_was_promised(site, seed):
    dice, oracle = weather.dice_of(seed), Oracle()
    job, world, stale, place = weather.Job(dice), 0, [], None
    print(f"seed {seed}: {job}")
    for number in range(LIVES):
        life = weather.Life(number, dice, job, site, world)
        if life.place != place:  # A daemon that has the job's memory refuses another place.
            oracle.has_memory = False
            for others in stale:
                others.kill()
            for node in job.nodes:
                site.ckpt("stop", "--runtime-dir", site.runtime(node))
        ranks = Ranks(life, job, site)
        faults = weather.Faults(dice, site, life.place, ranks)
        print(life, flush=True)
        # The memory of a node that is not in the list does not count.
        oracle.has_memory &= set(job.nodes) == set(life.nodes)
        has_begun = False
        try:
            has_begun = live(ranks, dice, faults, oracle, stale)
        finally:
            is_whole = life.ends_at is None and not faults.has_broken_the_job
            ranks.end(life.ends_by if is_whole else signal.SIGKILL)
            for others in stale:
                others.kill()
        stale = [ranks] if not ranks.have_ended(all) else []
        lost = [event["text"] for event in ranks.said("error")] if has_begun else []
        # Daemons that died may have had the newest step alone, which close() says.
        assert all(faults.may_lose_a_close(text) for text in lost), lost
        if dice.random() < 0.25:
            for node in job.nodes:
                faults.daemon_dies(node)
        oracle.end(ranks, faults)
        print(f"   {oracle}; {faults.done}", flush=True)
        world, place = life.world, life.place
