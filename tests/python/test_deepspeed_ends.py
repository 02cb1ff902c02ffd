"""Goal: a training of DeepSpeed that has ended is found by its next start with its last step.

Method: the memory and the folders of an engine, without the engine: a stand-in has DeepSpeed's own
writer, a count of steps and one tensor.
"""

import os
import types

import pytest

pytest.importorskip("deepspeed")
torch = pytest.importorskip("torch")

import libckpt  # noqa: E402


@pytest.fixture
def engine(runtime):
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    from libckpt.deepspeed._folders import Folders
    from libckpt.deepspeed._memory import Memory

    writer = TorchCheckpointEngine()
    writer.zipfile_serialization = True  # As an engine's configuration says.
    engine = types.SimpleNamespace(checkpoint_engine=writer, global_steps=0,
                                   use_node_local_storage=lambda: False)  # fmt: skip
    layout, weight = types.SimpleNamespace(rank=0, ranks=1), torch.zeros(9)
    memory = Memory(engine, layout, "job", (None, None), {"save_mem_interval": 2})
    memory._state = types.SimpleNamespace(items=lambda: {"weight": weight}, arrays=lambda: ())
    folders = Folders(engine, layout, memory.session.ranks, {})
    engine._libckpt = types.SimpleNamespace(memory=memory, folders=folders)

    def step():
        engine.global_steps += 1
        weight.add_(1)
        memory.capture()

    engine.step = step
    yield engine
    folders.close()
    memory.session.abandon()


def save(engine, directory):
    def stock(save_dir, tag, *_):
        path = os.path.join(save_dir, tag, "mp_rank_00_model_states.pt")
        engine.checkpoint_engine.save({"global_steps": engine.global_steps}, path)
        return True

    assert engine._libckpt.folders.save(stock, str(directory))


def newest(job):
    """The step that the next start finds, and the first number of its tensor."""
    restored = job().restore()
    return restored.step, restored.items["weight"][0].item()


def test_a_last_step_that_was_not_due_is_in_memory_once_folders_are_waited_for(engine, job):
    for _ in range(3):
        engine.step()
    libckpt.deepspeed.wait(engine)
    libckpt.deepspeed.wait(engine)  # It is there by now.
    session = engine._libckpt.memory.session
    assert session.counts()["captured"] == 3 and session.counts()["failed"] == 0
    session.abandon()
    assert newest(job) == (3, 3.0)


@pytest.mark.parametrize("saved_at", [None, 2])
def test_the_end_keeps_a_last_step_that_no_folder_has(engine, job, tmp_path, saved_at):
    for _ in range(3):
        engine.step()
        if engine.global_steps == saved_at:
            save(engine, tmp_path)
    libckpt.deepspeed.close(engine)
    libckpt.deepspeed.close(engine)
    assert newest(job) == (3, 3.0)


def test_the_end_frees_the_memory_of_a_last_step_that_a_folder_has(engine, job, tmp_path):
    for _ in range(3):
        engine.step()
    save(engine, tmp_path)
    libckpt.deepspeed.close(engine)
    assert (tmp_path / "latest").read_text() == "global_step3"
    with pytest.raises(libckpt.NotFound):
        job().restore()
