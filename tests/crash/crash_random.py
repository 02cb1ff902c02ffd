"""Kills the trainer or the daemon at random instants of a chain of lives."""

import functools
import os
import random
import signal
import time

from crash_lab import Failure, Lab
from crash_labels import Promises, check_not_stalled

KILLS_PER_CHAIN = 10
# A life: about this long when nobody is killed. Kills fall on its start and its end too.
STEPS = 60
STEP_US = 1500
LATEST_SECONDS = 0.22


def kill_once(lab, promises, chance):
    least = promises.least(lab)
    kills_trainer = chance.random() < 0.5
    moment = chance.random() * LATEST_SECONDS
    trainer = lab.start_trainer("--steps", STEPS, "--step-us", STEP_US,
                                "--storage-interval", chance.choice([1, 2, 5]),
                                *(["--close"] if chance.random() < 0.1 else []))
    time.sleep(moment)
    if kills_trainer:
        if trainer.poll() is None:
            os.kill(trainer.pid, signal.SIGKILL)
        lab.wait(trainer)
        if trainer.returncode not in (0, -signal.SIGKILL):
            lab.finish(trainer)
    else:
        lab.kill_daemon()
        # An answer that was on its way back when the daemon died: restore must say so, or go on.
        lab.finish(trainer)
        check_not_stalled(trainer.events)
    if promises.memory_pid and lab.daemon_pid() != promises.memory_pid:
        least = min(least, promises.durable)
    promises.hold(least, trainer.events)
    promises.heard(lab, trainer.events)
    return "trainer" if kills_trainer else "daemon"


def chain(tools, seed, kills):
    chance = random.Random(seed)
    with Lab(tools, f"random-{seed}") as lab:
        promises = Promises()
        try:
            for _ in range(kills):
                kill_once(lab, promises, chance)
                if chance.random() < 0.3:
                    lab.check_directory()
            last = lab.start_trainer("--steps", 5, "--settle", "durable", "--close")
            least = promises.least(lab)
            promises.hold(least, lab.finish(last))
            lab.check_directory()
        except Failure as failure:
            raise Failure(f"{failure}\n    replay: random --seed {seed} --kills {kills}") from None


def tasks(tools, arguments):
    whole, rest = divmod(arguments.kills, KILLS_PER_CHAIN)
    sizes = [KILLS_PER_CHAIN] * whole + ([rest] if rest else [])
    # One chain replays from its own seed; many draw theirs from the one that is printed.
    if len(sizes) == 1:
        seeds = [arguments.seed]
    else:
        chance = random.Random(arguments.seed)
        seeds = [chance.randrange(1, 1 << 32) for _ in sizes]
    return [(f"chain of seed {seed}", functools.partial(chain, tools, seed, kills))
            for seed, kills in zip(seeds, sizes)]
