"""Goal: a Python test that fails by chance is run once more and named, and no other passes so.

Method: tests/python/run.sh runs samples/unsteady.py. tests/suites_test.sh checks how its lines are
counted.
"""

import os
import re
import subprocess

import pytest
from conftest import BUILD

SAMPLE = "tests/python/samples/unsteady.py"


@pytest.fixture
def run(tmp_path):
    def run_some(wanted, *arguments, status):
        environment = {k: v for k, v in os.environ.items() if k != "CKPT_FAILED_TESTS"}
        done = subprocess.run(
            ["bash", "tests/python/run.sh", BUILD, *arguments, SAMPLE, "-k", wanted],
            env=environment | {"COUNTS": str(tmp_path)}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        said = re.findall(r"^(\w[\w :]*?):? python: (.*)$", done.stdout, re.MULTILINE)
        return sorted(said), done.stdout

    return run_some


def test_a_test_that_fails_once_passes_and_is_named(run):
    wanted = "test_passes or two or ends"
    said, output = run(wanted, "--twice", status=0)
    names = ["test_fails_as_it_ends", "test_fails_once[2 of two]"]
    failed, unsteady = ([(verdict, name) for name in names] for verdict in ("FAILED", "unsteady"))
    assert said == [*failed, ("ok", "test_passes"), *unsteady]
    assert "the first failure of 2 of two" in output


def test_a_test_that_fails_twice_fails(run):
    said, _ = run("test_passes or always", "--twice", status=1)
    name = "test_fails_always"
    assert said == [("FAILED", name), ("failed again", name), ("ok", "test_passes")]


def test_four_failures_are_no_chance(run):
    said, _ = run("once or ends", "--twice", status=1)
    assert [verdict for verdict, _ in said] == ["FAILED"] * 4


def test_nothing_is_run_twice_unasked(run):
    said, _ = run("two", status=1)
    assert said == [("FAILED", "test_fails_once[2 of two]")]
