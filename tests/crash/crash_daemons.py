"""Daemons that die, again and again, under one trainer, and at the moment at which trainers end."""

import functools
import os
import random
import signal
import time

from crash_lab import Failure, Lab, wait_until
from crash_labels import check_not_stalled
from crash_leaks import compare, usage

RESTARTS = 100
RESTARTS_BY_TIME = 20
WARM_RESTARTS = 10
SECONDS = 60
ENDS = 60


def trainer_outlives_daemons(tools, restarts, *interval):
    """After each death a step of the next daemon is committed, and nothing is left of the last."""
    with Lab(tools, "daemons-by-time" if interval else "daemons") as lab:
        lab.start_daemon()
        trainer = lab.start_trainer("--steps", 1_000_000, "--step-us", 10_000,
                                    "--storage-interval", 50, *interval)
        wait_until(lambda: trainer.events.has("committed") or is_over(trainer), SECONDS,
                   "the first step to be committed")
        before = None
        for count in range(1, restarts + 1):
            lab.kill_daemon()
            # The trainer may be faster; then ours ends, and tells why.
            lab.start_daemon(must_be_ready=False)
            wait_until(lambda: trainer.events.newest("restarts") >= count or is_over(trainer),
                       SECONDS, f"the trainer to see daemon {count} die")
            begun = trainer.events.newest("saving")
            wait_until(lambda: trainer.events.newest("committed") > begun or is_over(trainer),
                       SECONDS, f"a step of daemon {count} to be committed")
            if is_over(trainer):
                lab.finish(trainer)
                raise Failure(f"the trainer ended early ({trainer.events.path})")
            if count == WARM_RESTARTS:
                before = usage(trainer.pid)
        compare(tools, "the trainer", before, trainer.pid)
        check_not_stalled(trainer.events)


def is_over(trainer):
    return trainer.poll() is not None


def trainers_end_as_daemons_die(tools, seed):
    """In either order: no trainer crashes, or hangs."""
    chance = random.Random(seed)
    with Lab(tools, "ends") as lab:
        for _ in range(ENDS):
            if not lab.daemon_pid():
                lab.start_daemon()
            trainer = lab.start_trainer("--steps", 3, "--step-us", 300,
                                        *(["--close"] if chance.random() < 0.5 else []))
            last = chance.choice(["opened", "saving", "trained"])
            wait_until(lambda: trainer.events.has(last) or is_over(trainer), SECONDS,
                       f"a trainer to have {last}")
            time.sleep(chance.random() * 0.003)
            pid = lab.daemon_pid()
            if pid:
                os.kill(pid, signal.SIGKILL)
            code = lab.wait(trainer)
            if code != 0:
                raise Failure(f"a trainer ended with {code}: {trainer.events.lines()[-3:]} "
                              f"({trainer.events.path})")


def tasks(tools, arguments):
    return [(f"{RESTARTS} restarts", functools.partial(trainer_outlives_daemons, tools, RESTARTS)),
            (f"{RESTARTS_BY_TIME} restarts, captures by time",
             functools.partial(trainer_outlives_daemons, tools, RESTARTS_BY_TIME,
                               "--mem-ms", "150")),
            (f"{ENDS} ends", functools.partial(trainers_end_as_daemons_die, tools,
                                               arguments.seed))]
