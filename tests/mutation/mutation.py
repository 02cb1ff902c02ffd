#!/usr/bin/python3
"""Plants mistakes in the library, one at a time, and asks whether the tests notice.

mutation.py BUILD [--share K/N] [--only WORD ...] [--own] [--jobs N] [--list]

BUILD is a finished build of this tree. Each mutant of mutants/ is compiled and linked outside of
it, with the test program of its own module first and then, while nothing notices, with the other
unit tests that have the module in them, and at last, where the mutant says so, with the simulator.
A test that fails, a crash, or a test that does not end has noticed: the mutant is killed.

Prints "ok mutation: NAME" for a mutant that is killed or whose survival is explained, and "FAILED
mutation: NAME" for one that is not, that does not apply any more or does not compile. Over all
mutants, 95 % must be killed. --share: each N-th mutant, beginning with number K; "commit/N" takes K
from the commit that is checked out, so that it changes from commit to commit. A share only makes
the mutants whose survival is explained: all tests would have to run for each. --own: ask the tests
of the mutant's own module alone, while one works on them.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import mutants
import programs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KILLED_MIN = 0.95
# A program, and each of its tests, has this many times what it takes when it is sound, and LIMIT_S.
LIMIT_FACTOR = 6
LIMIT_S = 20
SOUND_S = 900
TESTS = ["--abort", "--durations", "yes"]  # With the durations, each test prints something.


class Sound:
    """The programs without a mistake: each must pass, and its time is the measure of a hang."""

    def __init__(self, build):
        self.build = build
        self.lock = threading.Lock()
        self.limits = {}

    def limits_of(self, name, arguments):
        with self.lock:
            if (name, *arguments) not in self.limits:
                sound = programs.Watched(self.build.tree / programs.target_of(name), arguments,
                                         self.build.tree / "tests",
                                         programs.Limits(SOUND_S, SOUND_S))
                if sound.problem:
                    raise RuntimeError(f"{name} fails without any mutant: {sound.problem}")
                self.limits[name, *arguments] = programs.Limits(
                    LIMIT_S + LIMIT_FACTOR * sound.took_s, LIMIT_S + LIMIT_FACTOR * sound.silent_s)
            return self.limits[name, *arguments]


def ask(build, sound, mutant, folder, arguments):
    """The test that kills it, as a line for people; empty: none. Raises if it is no mutant."""
    made = programs.MutatedPrograms(build, mutant, folder)
    names = build.programs_of(mutant.module)
    if arguments.share and mutant.survives:
        made.make(names[0], programs.target_of(names[0]))
        return ""
    # A hint only: the suite that noticed last time comes before the others.
    names.sort(key=lambda name: name.removeprefix("unit_") not in mutant.tests)
    asked = [(name, TESTS) for name in names]
    if arguments.own:
        del asked[1:]
    elif mutant.seeds:
        asked.append(("sim", ["--seeds", str(mutant.seeds)]))
    for name, words in asked:
        limits = sound.limits_of(name, words)
        program = made.make(name, programs.target_of(name))
        started_in = None
        for other in programs.STARTED.get(name, []):
            started_in = folder / "bin"
            started_in.mkdir(exist_ok=True)
            made.make(f"bin/{other}", f"bin/{other}")
        run = programs.Watched(program, words, build.tree / "tests", limits, started_in)
        if run.problem:
            return f"killed by {name}: {run.problem}"
    return ""


def judge(build, sound, mutant, folder, arguments):
    """Whether it passed, whether it was killed, and what to print."""
    begin = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        killed = ask(build, sound, mutant, folder, arguments)
    except mutants.BadMutant as problem:
        return False, False, f"it does not apply any more: {problem}"
    except programs.DoesNotCompile as problem:
        return False, False, f"it does not compile: {str(problem)[-2000:]}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took = f" ({time.monotonic() - begin:.0f} s)"
    if killed:
        return True, True, killed + took
    if mutant.survives:
        return True, False, f"survives: {mutant.survives}{took}"
    return False, False, f"nothing notices: {mutant.breaks}{took}"


def share_of(text):
    """The number of a share, and how many there are."""
    words = re.fullmatch(r"(\d+|commit)/([1-9]\d*)", text)
    if not words:
        sys.exit(f"mutation.py: --share wants K/N or commit/N, not {text}")
    shares = int(words[2])
    if words[1] != "commit":
        return int(words[1]) % shares, shares
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("mutation.py: --share commit/N wants a git checkout")
    return int(done.stdout[:8], 16) % shares, shares


def choose(all_mutants, arguments):
    chosen = all_mutants
    if arguments.share:
        number, shares = share_of(arguments.share)
        chosen = chosen[number::shares]
        print(f"share {number} of {shares}: {len(chosen)} of {len(all_mutants)} mutants; the same "
              f"again: tests/run.sh mutation --share {number}/{shares}")
    if arguments.only:
        chosen = [one for one in chosen if any(word in one.label for word in arguments.only)]
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--share")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    all_mutants = mutants.read_mutants()
    chosen = choose(all_mutants, arguments)
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.label}: {mutant.breaks}")
        return 0
    build = programs.Build(ROOT, arguments.build)
    sound = Sound(build)
    scratch = build.tree / "mutation"
    passed, killed, all_good = 0, 0, True
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {pool.submit(judge, build, sound, mutant,
                               scratch / mutant.label.replace("/", "-"), arguments): mutant
                   for mutant in chosen}
        for done in concurrent.futures.as_completed(waiting):
            is_good, is_killed, text = done.result()
            passed += is_good
            killed += is_killed
            print(f"{'ok' if is_good else 'FAILED'} mutation: {waiting[done].label}: {text}",
                  flush=True)
    print(f"{killed} of {len(chosen)} mutants were killed")
    if len(chosen) == len(all_mutants) and killed < KILLED_MIN * len(chosen):
        print(f"FAILED mutation: fewer than {KILLED_MIN:.0%} were killed")
        all_good = False
    return 0 if all_good and passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
