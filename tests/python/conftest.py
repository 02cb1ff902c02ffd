"""Goal: every test of the Python suite prints "ok NAME" or "FAILED NAME", as tests/run.sh counts.

Method: a hook of pytest for the lines, and fixtures for what most tests need: the build's programs,
a directory of one's own, trainers that can be killed, and the end of every daemon that a test
started.
"""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

BUILD = pathlib.Path(os.environ.get("CKPT_BUILD", "build/dev")).resolve()
TRAINER_SECONDS_MAX = 180
LOGGED = re.compile(r"^[-\d]+T[:.\d]+Z \w+ libckpt .*\n?", re.MULTILINE)


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than ten seconds; left out by --quick")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # As in the background of a script.
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Programs inherit it.
    if not hasattr(config, "workerinput"):  # One of several workers: they report to the first one.
        config.pluginmanager.register(Verdicts(config.rootpath))


class Verdicts:
    """A line for each test when all of its parts have ended."""

    def __init__(self, root):
        self.root = root
        self.of = {}  # Tests by their ids.
        # In the second try of what tests/run.sh has counted as failed.
        self.words = {"passed": "unsteady", "failed": "failed again:", "skipped": "skipped"}
        if "CKPT_SECOND_TRY" not in os.environ:
            self.words |= {"passed": "ok", "failed": "FAILED"}

    def pytest_runtest_logreport(self, report):
        is_worse = report.failed or report.nodeid not in self.of
        if is_worse and (report.when == "call" or not report.passed):
            self.of[report.nodeid] = report.outcome

    def pytest_runtest_logfinish(self, nodeid):
        verdict = self.of.pop(nodeid)
        print(f"\n{self.words[verdict]} python: {nodeid.split('::', 1)[-1]}", flush=True)
        if verdict == "failed" and "CKPT_FAILED_TESTS" in os.environ:
            with open(os.environ["CKPT_FAILED_TESTS"], "a") as file:
                print(self.root / nodeid, file=file)


@pytest.fixture
def programs():
    """The directory with ckptd and ckpt: those of the installed package."""
    import libckpt

    return pathlib.Path(libckpt.__file__).parent / "bin"


@pytest.fixture
def ckpt(programs):
    """Runs `ckpt` with arguments, and returns its output, after a failure also its errors."""

    def run(*arguments, status=0):
        done = subprocess.run(
            [programs / "ckpt", *arguments],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + (done.stderr if status else "")

    return run


@pytest.fixture
def runtime(tmp_path, programs, monkeypatch):
    """A runtime directory of this test's own; its daemon ends with the test."""
    directory = tmp_path / "runtime"
    monkeypatch.setenv("LIBCKPT_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", str(programs / "ckptd"))
    monkeypatch.setenv("LIBCKPT_NICE", "0")  # Tests have deadlines, and others use the machine.
    yield directory
    from libckpt.core.files import _unsaved

    _unsaved.take_unreported()  # A loss on a full disk here is not the next test's.
    subprocess.run(
        [programs / "ckpt", "stop", "--no-flush"],
        env={**os.environ, "LIBCKPT_RUNTIME_DIR": str(directory)},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def job(runtime):
    """Opens sessions of one job, and leaves each as a death would when the test ends."""
    import libckpt

    opened = []

    def open_session(name="job", **options):
        options.setdefault("raise_on_error", True)
        opened.append(libckpt.init(name, **options))
        return opened[-1]

    yield open_session
    for session in opened:
        session.abandon()


@pytest.fixture
def held_up(job):
    """A session that saved step 2, which is not committed: the other rank has not saved it."""
    first, second = (job("held_up", rank=rank, world_size=2) for rank in (0, 1))
    items = {"a": 1}
    other = threading.Thread(target=lambda: second.save(1, items, wait=30))
    other.start()
    first.save(1, items, wait=30)
    other.join()
    assert first.save(2, items, wait=30)
    return first


class TrainerServer:
    """trainers/server.py, which forks the trainers of all tests."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).parent / "trainers" / "server.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def answer(self, timeout):
        """The status of the trainer; none: it runs."""
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        return int(self.process.stdout.readline()) if ready else None

    def stop(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


class Trainer:
    """One trainer: much like a Popen."""

    def __init__(self, server, pid, log):
        self._server, self.pid, self.log, self.returncode = server, pid, log, None
        self._deadline = time.monotonic() + TRAINER_SECONDS_MAX

    def poll(self, timeout=0):
        if self.returncode is None:
            self.returncode = self._server.answer(timeout)
        return self.returncode

    def wait(self, timeout=TRAINER_SECONDS_MAX):
        assert self.poll(timeout) is not None, self.log.read_text()[-4000:]
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)
        self.wait()

    def wait_until(self, is_so):
        while not is_so():
            self._still_runs()

    def has_said(self, text):
        """Whether its output has the text. The library's own lines do not count: one of a capture
        that was "held 17.5 ms" is no trainer's "held 17"."""
        return text in LOGGED.sub("", self.log.read_text())

    def wait_until_said(self, text):
        self.wait_until(lambda: self.has_said(text))

    def wait_until_captured_after(self, step):
        """Until its log has a capture of a later step: on a busy machine some are skipped. One that
        is only copied so far dies with the process: nobody has judged it."""
        levels = "captured|replicated|committed|durable"
        told = re.compile(rf" step (\d+) captured in .*, (?:{levels})\n")
        while not any(int(found) > step for found in told.findall(self.log.read_text())):
            self._still_runs()

    def _still_runs(self):
        assert self.poll() is None, self.log.read_text()[-4000:]
        assert time.monotonic() < self._deadline, self.log.read_text()[-4000:]
        time.sleep(0.002)

    def wait_for_number(self, text):
        """The number that its output has behind the text, once that line is whole."""
        pattern = re.compile(re.escape(text) + r"(\d+)\n")
        while (found := pattern.search(self.log.read_text())) is None:
            self._still_runs()
        return int(found.group(1))

    def finish(self):
        """Waits for the end, which is to be a good one; returns the output."""
        assert self.wait() == 0, self.log.read_text()[-4000:]
        return self.log.read_text()


@pytest.fixture(scope="session")
def trainer_server():
    server = TrainerServer()
    yield server
    server.stop()


@pytest.fixture
def trainer(runtime, tmp_path, trainer_server):
    """Starts a script of tests/python/trainers in a process of its own; one at a time."""
    started = []

    def start(script, *arguments):
        log = tmp_path / f"trainer-{len(started)}.log"
        log.touch()
        environment = {k: v for k, v in os.environ.items() if k.startswith("LIBCKPT_")}
        request = {"script": script, "arguments": arguments, "environment": environment}
        pid = trainer_server.ask(request | {"log": str(log)})
        started.append(Trainer(trainer_server, pid, log))
        return started[-1]

    yield start
    for process in started:
        process.kill()
