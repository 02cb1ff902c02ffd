"""Trainers whose tensors lie on a GPU, killed while it copies: on the stand-in driver.

Half copied bytes are poison there, so that a Slot which is published too early shows it.
"""

import functools
import signal

from crash_lab import Failure, Lab, wait_until
from crash_labels import HITS, Promises, train
from crash_zombies import stopped_trainer_is_replaced

# In a trainer's life of about 12 steps: 2 copies each, and some 30 calls.
COPIES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 21, 24)
CALLS_EARLY, CALLS = 60, 400
EARLY_STRIDE, STRIDE = 3, 13
EVERY_CALL_KILLS = 1000  # --kills: so many, and a trainer is killed at each call.
ERRORS = (700, 214)  # An illegal address; an uncorrectable error of its memory.
GPU_WAS_LOST = 7  # A trainer's exit code.
LABEL = "gpu.before_batch"
DEATHS, DEATHS_LEAST = 12, 5
SECONDS = 60

killed = set()


def killed_at(tools, words, points=""):
    """Killed there; the next trainer has what was promised, and all of it; then one more."""
    with Lab(tools, "gpu") as lab:
        promises = Promises()
        lab.start_daemon()
        lab.gpu = "seed=1"
        train(lab, promises)
        lab.gpu = words
        if train(lab, promises, points=points, may_die=True):
            killed.add(words.split("=")[0] if words else points)
        lab.check_directory()
        lab.gpu = "seed=2"
        train(lab, promises)
        train(lab, promises, "--close")
        lab.gpu = None
        lab.check_directory()


def lost_at(tools, copy, error):
    """The GPU is lost in mid-copy: the trainer fails and ends; the step before is still there."""
    with Lab(tools, "gpu-lost") as lab:
        promises = Promises()
        lab.start_daemon()
        lab.gpu = "seed=1"
        train(lab, promises)
        least = promises.least(lab)
        lab.gpu = f"seed={copy} fail_copy={copy} error={error}"
        # Steps without a free Slot copy nothing: there must be enough of them.
        trainer = lab.start_trainer("--steps", 1000, "--settle", "committed")
        events = lab.finish(trainer, expected=GPU_WAS_LOST)
        promises.hold(least, events)
        promises.heard(lab, events)
        # Without a GPU: the bytes are the same wherever they go.
        lab.gpu = None
        train(lab, promises, "--close")
        lab.check_directory()


def outlives_daemons(tools):
    """Its Slots go with each daemon, in mid-copy: let go by the driver before they are unmapped.
    The trainer itself looks at what the stand-in says of that."""
    with Lab(tools, "gpu-daemons") as lab:
        lab.gpu = "seed=6"
        lab.start_daemon()
        trainer = lab.start_trainer("--steps", 3000, "--step-us", 3000, "--settle", "committed",
                                    "--close")
        deaths = 0
        while trainer.poll() is None and deaths < DEATHS:
            begun = trainer.events.newest("saving")
            wait_until(lambda: trainer.events.newest("committed") > begun or
                       trainer.poll() is not None, SECONDS, f"a step of daemon {deaths}")
            lab.kill_daemon()
            deaths += 1
            lab.start_daemon(must_be_ready=False)
            wait_until(lambda: trainer.events.newest("restarts") >= deaths or
                       trainer.poll() is not None, SECONDS, f"the trainer to see death {deaths}")
        lab.finish(trainer)
        if deaths < DEATHS_LEAST:
            raise Failure(f"only {deaths} daemons died before the trainer ended")
        lab.gpu = None
        lab.check_directory()


def stopped_in_mid_copy(tools):
    stopped_trainer_is_replaced(tools, LABEL, gpu="seed=3")


def calls(arguments):
    """Some of them, others for each seed: as many seeds as STRIDE leave none out."""
    if arguments.kills >= EVERY_CALL_KILLS:
        return range(1, CALLS)
    first = arguments.seed - 1
    return [*range(1 + first % EARLY_STRIDE, CALLS_EARLY, EARLY_STRIDE),
            *range(CALLS_EARLY + first % STRIDE, CALLS, STRIDE)]


def tasks(tools, arguments):
    chosen = []
    if not tools.stand_in:
        raise Failure("--stand-in names no driver")
    for copy in COPIES:
        chosen.append((f"killed in copy {copy}",
                       functools.partial(killed_at, tools, f"kill_copy={copy} seed={copy}")))
    for copy in COPIES[::3]:
        words = f"kill_copy={copy} seed={copy} dma_after_death=1"
        chosen.append((f"killed in copy {copy}, which goes on",
                       functools.partial(killed_at, tools, words)))
    for call in calls(arguments):
        chosen.append((f"killed in call {call}",
                       functools.partial(killed_at, tools, f"kill_at={call} seed={call}")))
    for hit in HITS:
        chosen.append((f"killed at {LABEL}@{hit}",
                       functools.partial(killed_at, tools, "", f"{LABEL}=kill@{hit}")))
    for copy in (4, 9, 14):
        for error in ERRORS:
            chosen.append((f"lost in copy {copy} by {error}",
                           functools.partial(lost_at, tools, copy, error)))
    chosen.append((f"{DEATHS} daemons die", functools.partial(outlives_daemons, tools)))
    chosen.append(("stopped in mid-copy, replaced, woken",
                   functools.partial(stopped_in_mid_copy, tools)))
    return [task for task in chosen if arguments.only in task[0]]


def finish(_):
    """Kills that did not happen would show nothing."""
    return [f"{how}: no trainer was killed" for how in ("kill_copy", "kill_at")
            if how not in killed] + [f"{LABEL}@{hit}: no trainer was killed" for hit in HITS
                                     if f"{LABEL}=kill@{hit}" not in killed]
