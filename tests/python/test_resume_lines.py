"""Goal: the line that says where training goes on from is a sentence, whether there is a folder or
not, and says nothing of folders where nobody looked for one.

Method: the doors that choose by themselves are given a step from memory, and a folder or none.
"""

import logging
import types

import pytest

FOUND = types.SimpleNamespace(step=7, source_name="own memory")


def of_deepspeed(folder):
    pytest.importorskip("deepspeed")
    attached, number = deepspeed_attached(), None if folder is None else 3
    attached.folders = types.SimpleNamespace(newest=lambda _: (number, folder, ()))
    attached._newer("checkpoints")


def deepspeed_attached():
    from libckpt.deepspeed import Attached

    attached = Attached.__new__(Attached)
    attached.memory = types.SimpleNamespace(
        newest=lambda *_: FOUND, give=lambda found: {}, note_folder=lambda folder: None,
        session=types.SimpleNamespace(job="job"),
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
    assert caplog.messages == [f"libckpt: resumes step 7 from own memory; {told}"]


def test_a_resume_that_asks_memory_alone_says_nothing_of_folders(caplog):
    pytest.importorskip("deepspeed")
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        assert deepspeed_attached().resume() == 7
    assert caplog.messages == ["libckpt: resumes step 7 from own memory"]
