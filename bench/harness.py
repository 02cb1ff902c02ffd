"""Harness of the benches in Python: what bench/harness.hpp is for those in C++.

One thing is measured against another in pairs A B, B A, ...; the median of the pairs' ratios
counts. Where others used the machine, figures are kept and not judged. The lines of bench/results
have the same keys as those of the other benches.
"""

import argparse
import dataclasses
import datetime
import gc
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

BUSY_CORES_MAX = 0.5
PAIRS_MIN = 7
KERNEL_THREAD = 0x00200000  # Linux's PF_KTHREAD.


@dataclasses.dataclass
class Bar:
    """The figure to reach. Without a floor the figure is only measured and recorded."""

    id: str
    what: str
    excellent: float = 0
    floor: float = 0
    is_higher_better: bool = True
    is_judged: bool = True  # False: missing the floor fails nothing.
    unit: str = "ratio"

    def reaches(self, median, wanted):
        return median >= wanted if self.is_higher_better else median <= wanted


def seconds_of(work):
    """How long a call of it took; the heap is searched before, not meanwhile."""
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    finally:
        gc.enable()


class Harness:
    def __init__(self, name, description):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--pairs", type=int, default=9, help="pairs of measurements")
        parser.add_argument("--size", type=int, default=1024, help="MiB of state")
        parser.add_argument("--dir", default="/var/tmp/ckpt-bench", help="on the disk to measure")
        parser.add_argument("--results", help="append JSON lines to this file")
        parser.add_argument("--force", action="store_true", help="judge on a busy machine as well")
        self._arguments = parser.parse_args()
        self.name = name
        self.pairs = self._arguments.pairs
        self.bytes = self._arguments.size << 20
        self.directory = pathlib.Path(self._arguments.dir)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._has_heading = False
        self._is_missed = False
        self._conditions = [f"the disk is {file_system_of(self.directory)}"]
        self._busy_before = busy_cores()
        self._began, self._others = time.monotonic(), seconds_of_others()

    def add_condition(self, text):
        self._conditions.append(text)

    def compare(self, bar, ours, other, amount=None):
        """Seconds of the other by seconds of ours (by its reverse, where lower is better).

        Each is called once beforehand, uncounted.
        """
        ours(), other()
        pairs = []
        for number in range(self.pairs):
            if number % 2:
                theirs, mine = other(), ours()
            else:
                mine, theirs = ours(), other()
            pairs.append((mine, theirs))
            if sys.stderr.isatty():
                print(f"\r{bar.id}: pair {number + 1} of {self.pairs}", end=" ", file=sys.stderr)
        ratios = [t / m if bar.is_higher_better else m / t for m, t in pairs]
        amount = amount or self.bytes
        self._add(bar, ratios, *(amount / statistics.median(side) for side in zip(*pairs)))

    def sample(self, bar, samples):
        self._add(bar, samples, statistics.median(samples), 0.0)

    def _add(self, bar, values, ours, other):
        """Prints and appends it at once: a bench that hangs or dies loses nothing before."""
        values = sorted(values)
        busy_others = (seconds_of_others() - self._others) / (time.monotonic() - self._began)
        busy = (self._busy_before, busy_others)
        if not self._has_heading:
            print(f"{'':6} {self.name:58} {'median':>9} {'quartiles':>19} {'E':>7} {'F':>7}"
                  "  verdict")  # fmt: skip
        self._has_heading = True
        low, median, high = (quantile(values, part) for part in (0.25, 0.5, 0.75))
        verdict = self._verdict(bar, median, len(values), busy)
        self._is_missed |= verdict == "BELOW THE FLOOR"
        rates = f" ({ours / 1e9:.2f} against {other / 1e9:.2f} G/s)" if other else ""
        print(f"{bar.id:6} {bar.what:58} {median:9.3f} {low:9.3f} {high:9.3f} "
              f"{bar.excellent:7g} {bar.floor:7g}  {verdict}{rates}", flush=True)  # fmt: skip
        self._append(bar, (low, median, high), len(values), (ours, other), verdict, busy)

    def finish(self):
        """1 where a floor was not held."""
        return 1 if self._is_missed else 0

    def _verdict(self, bar, median, count, busy):
        if bar.floor == 0:
            return "measured"
        is_held = bar.reaches(median, bar.floor)
        if not bar.is_judged:
            return "measured, above the floor" if is_held else "measured, below the floor"
        if not self._arguments.force and max(busy) > BUSY_CORES_MAX:
            return "not judged: others used the machine"
        if not self._arguments.force and count < PAIRS_MIN:
            return "not judged: too few pairs"
        if bar.reaches(median, bar.excellent):
            return "excellent"
        return "holds" if is_held else "BELOW THE FLOOR"

    def _append(self, bar, quartiles, count, rates, verdict, busy):
        if not self._arguments.results:
            return
        now = datetime.datetime.now(datetime.timezone.utc)
        line = {
            "time": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "bench": self.name, "id": bar.id,
            "what": bar.what, "unit": bar.unit, "median": quartiles[1],
            "quartiles": [quartiles[0], quartiles[2]], "count": count, "ours": rates[0],
            "other": rates[1], "excellent": bar.excellent, "floor": bar.floor, "verdict": verdict,
            "size": self.bytes, "busy_cores": list(busy),
            "conditions": "; ".join(self._conditions), "machine": machine_in_words(),
            "commit": os.environ.get("CKPT_BENCH_COMMIT", ""),
            "compiler": f"Python {platform.python_version()}",
        }  # fmt: skip
        with open(self._arguments.results, "a") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")


def quantile(values, part):
    """The quantile of values in order."""
    place = part * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def machine_in_words():
    """No names of hosts."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    name = info.partition("model name")[2].partition(":")[2].split("\n")[0].strip()
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {gibibytes:.0f} GiB, {name}, {system}"


def file_system_of(directory):
    found = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True,
                           check=True).stdout.strip()  # fmt: skip
    return {"ext2/ext3": "ext4"}.get(found, found)


def _core_ticks():
    """(busy, stolen), of all cores together."""
    fields = list(map(float, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]))
    user, nice, system, _, _, hard, soft, stolen = fields
    return user + nice + system + hard + soft + stolen, stolen


def busy_cores():
    """During one second."""
    before, began = _core_ticks()[0], time.monotonic()
    time.sleep(1)
    ticks = _core_ticks()[0] - before
    return ticks / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


def seconds_of_others():
    """Those that other processes, not our descendants, and other guests of the host have used."""
    usages = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks = 0 if int(fields[6]) & KERNEL_THREAD else sum(map(int, fields[11:15]))
        usages[int(path.name)] = (int(fields[1]), ticks)

    def is_ours(process):
        while process in usages and process != os.getpid():
            process = usages[process][0]
        return process == os.getpid()

    ticks = _core_ticks()[1] + sum(t for process, (_, t) in usages.items() if not is_ours(process))
    return ticks / os.sysconf("SC_CLK_TCK")
