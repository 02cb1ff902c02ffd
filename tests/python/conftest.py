"""Goal: every test of the Python suite prints "ok NAME" or "FAILED NAME", as tests/run.sh counts.

Method: a hook of pytest for the lines, and fixtures for what most tests need: the build's programs,
a directory of one's own, trainers that can be killed, and the end of every daemon that a test
started.
"""

import os
import pathlib
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ.get("CKPT_BUILD", "build/dev")).resolve()
TRAINER_SECONDS_MAX = 180


def pytest_runtest_logreport(report):
    name = report.nodeid.split("::", 1)[-1]
    if report.skipped:
        print(f"\nskipped python: {name}")
    elif report.when == "call" or report.failed:
        print(f"\n{'ok' if report.passed else 'FAILED'} python: {name}", flush=True)


@pytest.fixture
def programs():
    """The directory with ckptd and ckpt."""
    return BUILD / "bin"


@pytest.fixture
def runtime(tmp_path, programs, monkeypatch):
    """A runtime directory of this test's own; its daemon ends with the test."""
    directory = tmp_path / "runtime"
    monkeypatch.setenv("LIBCKPT_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", str(programs / "ckptd"))
    yield directory
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
def trainer(runtime, tmp_path):
    """Starts a script of tests/python/trainers in a process of its own, which ends with the test.

    Its output goes to files, as the daemon that it may start would keep a pipe open.
    """
    started = []

    def start(script, *arguments, **environment):
        number = len(started)
        with open(tmp_path / f"trainer-{number}.log", "w") as log:
            process = subprocess.Popen(
                [sys.executable, pathlib.Path(__file__).parent / "trainers" / script, *arguments],
                env={**os.environ, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        process.log = tmp_path / f"trainer-{number}.log"
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def finish(process):
    """Waits for a trainer that is to end well; returns its output."""
    code = process.wait(timeout=TRAINER_SECONDS_MAX)
    output = process.log.read_text()
    assert code == 0, output[-4000:]
    return output
