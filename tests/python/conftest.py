"""Goal: every test of the Python suite prints "ok NAME" or "FAILED NAME", as tests/run.sh counts.

Method: a hook of pytest for the lines, and fixtures for what most tests need: the build's programs,
a directory of one's own, and the end of every daemon that a test started.
"""

import os
import pathlib
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("CKPT_BUILD", "build/dev")).resolve()


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
