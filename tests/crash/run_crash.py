#!/usr/bin/python3
"""The crash suite: kills real trainers and daemons, and holds the library to what it promised.

  run_crash.py SCENARIO --bin DIR --trainer FILE --sources DIR
               [--seed N] [--kills N] [--only LABEL] [--lanes N] [--sanitized]

SCENARIO: labels, random, zombies, leaks, daemons, strangers, power, sharing, confined or gpu.

A failure prints the seed, the label and where the logs lie; exit code 1.
"""

import argparse
import concurrent.futures
import os
import random
import signal
import sys
import tempfile
import time

import crash_confined
import crash_daemons
import crash_gpu
import crash_labels
import crash_leaks
import crash_power
import crash_random
import crash_sharing
import crash_strangers
import crash_zombies
from crash_lab import Failure


SCENARIOS = {"labels": crash_labels, "random": crash_random, "zombies": crash_zombies,
             "leaks": crash_leaks, "daemons": crash_daemons, "strangers": crash_strangers,
             "gpu": crash_gpu, "power": crash_power, "sharing": crash_sharing,
             "confined": crash_confined}
SKIPPED = 77  # ctest takes it for "skipped".
SLOW_SECONDS = 30  # Said, not failed: the machine may be busy.


class Tools:
    def __init__(self, arguments, folder):
        self.daemon = os.path.join(arguments.bin, "ckptd")
        self.command_line = os.path.join(arguments.bin, "ckpt")
        self.trainer = arguments.trainer
        self.contract = arguments.contract
        self.sources = arguments.sources
        self.stand_in = arguments.stand_in
        self.must_keep = arguments.keep
        self.are_sanitized = arguments.sanitized
        self.points_log = os.path.join(folder, "points.log")

    def labels_hit(self):
        try:
            with open(self.points_log, encoding="utf-8") as file:
                return set(file.read().split())
        except FileNotFoundError:
            return set()


def timed(function):
    began = time.monotonic()
    function()
    return time.monotonic() - began


def run_all(tasks, lanes, is_verbose):
    """Each task is (name, function). Returns what failed, in words."""
    failures = []
    pool = concurrent.futures.ThreadPoolExecutor(lanes)
    try:
        running = {pool.submit(timed, function): name for name, function in tasks}
        for done in concurrent.futures.as_completed(running):
            try:
                took = done.result()
                if is_verbose or took > SLOW_SECONDS:
                    print(f"{running[done]}: {took:.1f} s", flush=True)
            except (Failure, OSError, ValueError) as failure:
                failures.append(f"{running[done]}: {failure}")
                print(f"FAILED {failures[-1]}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)  # Those that run still end their processes.
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--sources", required=True)
    parser.add_argument("--stand-in", default="", help="the driver of the scenario gpu")
    parser.add_argument("--contract", default="", help="the tests that sharing runs on its disk")
    parser.add_argument("--seed", type=int, default=1, help="0: another one each time")
    parser.add_argument("--kills", type=int, default=int(os.environ.get("CKPT_CRASH_KILLS", 200)))
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true", help="say each run and its seconds")
    parser.add_argument("--keep", action="store_true", help="keep the files of all runs")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--sanitized", action="store_true",
                        help="a sanitizer is in the programs: their memory tells nothing")
    arguments = parser.parse_args()
    arguments.seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 32)
    scenario = SCENARIOS[arguments.scenario]
    why = scenario.prepare() if hasattr(scenario, "prepare") else ""
    if why:
        print(f"crash {arguments.scenario}: skipped: {why}")
        return SKIPPED
    began = time.monotonic()
    # ctest ends us so when the time is over: the labs must still end their processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="crash-suite-") as folder:
        tools = Tools(arguments, folder)
        print(f"crash {arguments.scenario}: seed {arguments.seed}", flush=True)
        if tools.are_sanitized and scenario in (crash_daemons, crash_leaks):
            print("memory is not compared under a sanitizer, which keeps some of what was freed")
        failures = run_all(scenario.tasks(tools, arguments), arguments.lanes, arguments.verbose)
        finish = getattr(scenario, "finish", None)
        if finish and not arguments.only:
            for failure in finish(tools):
                failures.append(failure)
                print(f"FAILED {failure}")
    print(f"{len(failures)} failed, seed {arguments.seed}, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
