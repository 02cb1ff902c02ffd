"""Goal: in a notebook, a cell that builds an engine of DeepSpeed and attaches its job runs again;
in a program, two engines do not take a job from one another.

Method: cells of trainers/cells.py, in a process of their own that says it is interactive, or not.
"""

import json

import pytest

pytest.importorskip("deepspeed")

from test_ranks import said  # noqa: E402
from trainers import ports  # noqa: E402


@pytest.fixture
def cells(trainer, tmp_path):
    with ports.reserve() as reserved:
        port = reserved.getsockname()[1]

        def run(**options):
            options = {"folder": str(tmp_path / "folder"), "port": port, **options}
            return trainer("cells.py", json.dumps(options)).finish()

        yield run


@pytest.mark.parametrize("way", [{"is_interactive": True},
                                 {"is_interactive": False, "detaches": True}])  # fmt: skip
def test_a_cell_that_runs_again_goes_on_from_what_the_first_captured(cells, tmp_path, way):
    log = cells(**way)
    assert said(log, 0, "began") == [["1", "0"], ["2", "3"]]
    assert said(log, 0, "attached") == [["False", "True"]]
    takes_over = "job job was attached to another engine of this process" in log
    assert takes_over == way["is_interactive"]
    assert "stock DeepSpeed writes" not in log
    assert (tmp_path / "folder" / "latest").read_text() == "global_step6"
    assert (tmp_path / "folder" / "global_step3").is_dir()


def test_in_a_program_the_second_engine_is_refused_and_the_way_out_named(cells):
    log = cells(is_interactive=False)
    assert said(log, 0, "began") == [["1", "0"]]
    (refused,) = said(log, 0, "refused")
    told = " ".join(refused)
    assert "give each engine a job of its own, or call libckpt.deepspeed.detach(" in told
    assert said(log, 0, "attached") == [["True", "False"]]
