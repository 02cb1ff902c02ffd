"""Trainers that are not quite gone: forked workers, and one that was stopped and woken."""

import functools
import os
import signal

from crash_lab import Failure, Lab, is_running, wait_until
from crash_labels import Promises, train


def forked_worker_lives_on(tools):
    """The worker holds every descriptor and socket that was inherited; the pidfd decides."""
    with Lab(tools, "worker") as lab:
        promises = Promises()
        lab.start_daemon()
        workers = []
        try:
            for _ in range(3):
                trainer = lab.start_trainer("--steps", 10, "--settle", "committed", "--fork-worker",
                                            "--stay")
                wait_until(lambda: trainer.events.has("trained") or trainer.poll() is not None, 60,
                           "the trainer to have trained")
                workers += trainer.events.values("worker")
                os.kill(trainer.pid, signal.SIGKILL)
                lab.wait(trainer)
                if not workers or not is_running(workers[-1]):
                    raise Failure("the worker did not outlive its trainer")
                promises.hold(promises.least(lab), trainer.events)
                promises.heard(lab, trainer.events)
            train(lab, promises, "--close")
            lab.check_directory()
        finally:
            for worker in workers:
                if is_running(worker):
                    os.kill(worker, signal.SIGKILL)


def stopped_trainer_is_replaced(tools, point, gpu=None):
    """Stopped at `point`, mid-copy; another takes its place; then the first is woken."""
    with Lab(tools, "stopped") as lab:
        lab.gpu = gpu
        promises = Promises()
        lab.start_daemon()
        train(lab, promises)
        # Steps enough for four captures, however many are skipped on a busy machine.
        stopped = lab.start_trainer("--steps", 1000, "--settle", "committed",
                                    points=f"{point}=stop@4")
        wait_until(lambda: is_stopped(stopped.pid) or stopped.poll() is not None, 60,
                   "the trainer to be stopped")
        if stopped.poll() is not None:
            raise Failure(f"{point} was not hit a fourth time")
        promises.heard(lab, stopped.events)
        replacement = lab.start_trainer("--steps", 10, "--settle", "committed", "--stay")
        wait_until(lambda: replacement.events.has("trained") or replacement.poll() is not None, 60,
                   "the replacement to train")
        if replacement.poll() is not None:
            lab.finish(replacement)
        promises.hold(promises.least(lab), replacement.events)
        promises.heard(lab, replacement.events)
        if f"pid {stopped.pid}, which was stopped (SIGSTOP, Ctrl-Z) and was killed" not in (
            replacement.log()
        ):
            raise Failure("the replacement did not hear whose place it took")
        # Killed by the daemon, or fenced: in no case may it write into what the other has.
        if stopped.poll() is None:
            os.kill(stopped.pid, signal.SIGCONT)
        code = lab.wait(stopped)
        if code == 0:
            raise Failure("a trainer whose place was taken trained to its end")
        os.kill(replacement.pid, signal.SIGKILL)
        lab.wait(replacement)
        train(lab, promises, "--close")
        lab.check_directory()


def is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def tasks(tools, arguments):
    chosen = [("a forked worker lives on", functools.partial(forked_worker_lives_on, tools))]
    for point in ("snapshot.begin", "snapshot.copied", "publish.before", "slot.acquired"):
        chosen.append((f"stopped at {point}, replaced, woken",
                       functools.partial(stopped_trainer_is_replaced, tools, point)))
    return chosen
