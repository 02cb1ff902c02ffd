"""Goal: what test_second_try.py needs: tests that pass, fail once, or fail each time.

Method: a file in the folder COUNTS says that a test has failed already. pytest does not find this
file by itself.
"""

import os
import pathlib

import pytest


def fail_once(name):
    failed = pathlib.Path(os.environ["COUNTS"]) / name
    has_failed = failed.exists()
    failed.touch()
    assert has_failed, f"the first failure of {name}"


def test_passes():
    assert os.environ["COUNTS"]


@pytest.mark.parametrize("number", ["1", "2 of two", "3"])
def test_fails_once(number):
    fail_once(number)


@pytest.fixture
def left():
    yield
    fail_once("left")


def test_fails_as_it_ends(left):
    assert os.environ["COUNTS"]


def test_fails_always():
    fail_once(f"always, {os.environ.get('CKPT_SECOND_TRY', 'once')}")
