"""Goal: the line that says where training goes on from is a sentence, whether there is a folder or
not, and says nothing of folders where nobody looked for one. It ends with how many steps were lost.

Method: the doors that choose by themselves are given a step from memory, and a folder or none. Then
a session and a loop over accelerate are killed, between captures and in one, and resumed.
"""

import json
import logging
import math
import re
import types

import pytest

import libckpt
from libckpt.core import _resuming

FOUND = types.SimpleNamespace(step=7, source_name="own memory", newest_seen=9)
LOST = "; 2 steps after it were lost (newest seen: 9)"


def of_deepspeed(folder):
    pytest.importorskip("deepspeed")
    attached, number = deepspeed_attached(), None if folder is None else 3
    attached.folders = types.SimpleNamespace(newest=lambda _: (number, folder, ()))
    attached._newer("checkpoints")


def deepspeed_attached():
    from libckpt.deepspeed import Attached

    attached = Attached.__new__(Attached)
    attached.memory = types.SimpleNamespace(
        newest=lambda *_, **__: FOUND, give=lambda *_: {}, note_folder=lambda folder: None,
        warn_of_client_state=lambda *_: None, session=types.SimpleNamespace(job="job"),
    )  # fmt: skip
    return attached


def of_megatron(folder):
    pytest.importorskip("megatron.core")
    from libckpt.megatron._easy import EasyCkpt

    progress = {"iteration": 7, "num_floating_point_operations_so_far": 0}
    EasyCkpt(1, 0, 0, save_dir="checkpoints")._resumed(progress, FOUND, folder)


@pytest.mark.parametrize("resume", [of_deepspeed, of_megatron])
@pytest.mark.parametrize("folder", ["global_step3", None])
def test_the_newest_folder_is_named_or_there_is_none(caplog, resume, folder):
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        resume(folder)
    told = "there is no folder" if folder is None else f"the newest folder is {folder}"
    assert caplog.messages == [f"libckpt: resumes step 7 from own memory; {told}{LOST}"]


def test_a_resume_that_asks_memory_alone_says_nothing_of_folders(caplog):
    pytest.importorskip("deepspeed")
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        assert deepspeed_attached().resume() == 7
    assert caplog.messages == [f"libckpt: resumes step 7 from own memory{LOST}"]


@pytest.mark.parametrize(
    ("step", "newest", "said"),
    [
        (7, None, ""),
        (7, 7, "; no step was lost"),
        (7, 8, "; 1 step after it was lost (newest seen: 8)"),
        (7, 9, LOST),
        (8, 9, "; 1 step after it was lost (newest seen: 9)"),  # A folder is taken, not memory.
        (9, 9, "; no step was lost"),
        (10, 9, ""),  # Nobody knows what made that folder.
        (math.inf, 9, ""),
    ],
)
def test_the_steps_between_the_resumed_and_the_newest_seen_are_lost(step, newest, said):
    restored = types.SimpleNamespace(step=7, newest_seen=newest)
    assert _resuming.lost(restored, None if step == 7 else step) == said


def test_a_folder_that_is_newer_than_memory_has_its_own_count(caplog):
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        assert not _resuming.is_memory_newest(FOUND, None, "step-8", 8)
    assert caplog.messages == [
        "libckpt: resumes from step-8, which is newer than step 7 in memory; 1 step after it was "
        "lost (newest seen: 9)"
    ]


def opened():
    return libckpt.init("lines", save_mem_interval=10)


def test_a_session_says_what_each_death_cost(runtime):
    session = opened()
    session.restore_or({})
    for step in range(1, 11):
        ticket = session.save_checkpoint_if_needed(step, {"step": step})
    ticket.committed.result(60)
    session.abandon()
    session = opened()
    restored = session.restore({})
    assert (restored.step, restored.newest_seen) == (10, 10)
    session.save_checkpoint_if_needed(11, {"step": 11})
    session.status()  # The daemon has heard of the step then.
    session.abandon()
    session = opened()
    assert session.restore({}).newest_seen == 11
    assert session.restore(step=10).newest_seen == 11  # A second look.
    session.abandon()
    session = opened()
    assert session.restore({}).newest_seen == 10  # That death cost nothing more.
    session.close()


def test_a_restore_from_a_path_knows_of_no_lost_steps(runtime, tmp_path):
    with libckpt.init("lines", tmp_path) as session:
        session.restore_or({})
        session.save(3, {"step": 3}, wait=60)
        session.flush()
        assert session.restore(path=tmp_path).newest_seen is None


def test_a_killed_loop_says_how_many_steps_it_lost(trainer, tmp_path):
    pytest.importorskip("accelerate")
    options = {"ranks": 1, "steps": 12, "every": 50}
    project = str(tmp_path / "project")
    process = trainer("acc.py", project, "libckpt", json.dumps(options | {"hold": 8}))
    process.wait_until_said("r0 held ")
    process.kill()
    last = trainer("acc.py", project, "libckpt", json.dumps(options)).finish()
    line = re.search(
        r"libckpt: resumes step (\d+) from own memory; there is no folder; (?:no step was lost|"
        r"(\d+) steps? after it (?:was|were) lost \(newest seen: (\d+)\))", last,
    )  # fmt: skip
    assert line, last
    step, count, newest = (int(found) if found else None for found in line.groups())
    assert step == 8 if count is None else (step + count == newest <= 9)
