"""Goal: a test that waits for a trainer's words does not take the library's for them.

Method: a trainer without a process, whose output is written by hand.
"""

import pytest
from conftest import Trainer

CAPTURED = "2026-11-27T18:19:16.562Z info libckpt step 8 captured in 17.5 ms, held 17.5 ms, durable"


@pytest.fixture
def output(tmp_path):
    return tmp_path / "log"


@pytest.mark.parametrize("line", [CAPTURED + "\n", CAPTURED, "r0 held 16\n" + CAPTURED])
def test_what_the_library_logs_was_not_said_by_the_trainer(output, line):
    output.write_text("r0 made 8 1.5\n" + line)
    assert not Trainer(None, 0, output).has_said("held 17")


def test_what_the_trainer_prints_was_said_whatever_is_logged_around_it(output):
    output.write_text(f"{CAPTURED}\nr0 held 17\n{CAPTURED}\n")
    assert Trainer(None, 0, output).has_said("held 17\n")
