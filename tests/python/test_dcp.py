"""Goal: torch.distributed.checkpoint saves into memory and folders through libckpt, and loads what
was saved at any number of ranks and in any layout.

Method: real ranks over gloo. Layouts are those of DCP's own tests of resharding: each is saved,
loaded in another one and compared. Folders are read by stock DCP, and its own are read here.
"""

import json
import os
import pathlib
import pickle

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

import torch.distributed as dist  # noqa: E402

import libckpt  # noqa: E402
import libckpt.dcp  # noqa: E402

ID, LATEST = "ckpt://layouts/step-3", "ckpt://layouts/latest"


@pytest.fixture
def do(trainer):
    """Does what trainers/dcp_layouts.py is asked for, and checks that all of it was done."""

    def run(*specs, storage=None, stock=False):
        given = None if stock else (storage or {})
        log = trainer("dcp_layouts.py", json.dumps(given), json.dumps(specs)).finish()
        told = [line for line in log.splitlines() if line.startswith(("done ", "failed "))]
        assert len(told) == len(specs), log[-6000:]
        assert not [line for line in told if line.startswith("failed")], log[-6000:]

    return run


def test_another_layout_is_loaded_from_memory(do):
    """Rows as columns, a mesh of two dimensions, all on each rank; with as many ranks as saved."""
    do(
        ["save", [2], ["S0"], ID],
        ["load", [2], ["S0"], LATEST],
        ["load", [2], ["S1"], ID],
        ["load", [2], ["R"], ID],
        ["load", [1], ["S0"], LATEST],
        ["load", [3], ["S0"], LATEST],
    )


@pytest.mark.slow
def test_any_number_of_ranks_loads_what_any_number_saved(do):
    for saved in (["save", [1], ["R"], ID], ["save", [2, 2], ["R", "S0"], ID],
                  ["save", [2, 2], ["S0", "S1"], ID], ["save", [2, 2], ["SS0", "S0"], ID],
                  ["save", [3], ["S1"], ID]):  # fmt: skip
        do(
            saved,
            ["load", [1], ["S0"], LATEST],
            ["load", [2], ["S0"], LATEST],
            ["load", [3], ["S1"], LATEST],
            ["load", [2, 2], ["S0", "S0"], LATEST],
            ["load", [2, 2], ["SS0", "S0"], LATEST],
            ["load", [2, 2], ["R", "S1"], LATEST],
        )


def test_stock_dcp_loads_our_folder_and_we_load_its(do, tmp_path):
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    do(["save", [2], ["S0"], ours], ["save", [2], ["S1"], ours])  # The second replaces the first.
    do(["load", [3], ["S0"], ours], ["save", [2], ["S0"], theirs], stock=True)
    do(["load", [1], ["S1"], theirs])
    assert sorted(os.listdir(ours)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert os.listdir(tmp_path / ".libckpt/work") == []
