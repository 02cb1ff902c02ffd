"""Goal: an engine of DeepSpeed may save to a directory of its own each time.

Method: the folders of an engine, without the engine: a stand-in has DeepSpeed's own writer, and
saves a tensor to one directory after another.
"""

import os
import types

import pytest

pytest.importorskip("deepspeed")
torch = pytest.importorskip("torch")


def test_a_directory_for_each_save_takes_the_memory_of_one(runtime, tmp_path):
    """As accelerate's save_state has one. All folders come, also where one was used before."""
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    from libckpt.core import _open_sessions
    from libckpt.deepspeed._folders import Folders

    writer = TorchCheckpointEngine()
    writer.zipfile_serialization = True  # As an engine's configuration says.
    engine = types.SimpleNamespace(checkpoint_engine=writer, global_steps=1,
                                   use_node_local_storage=lambda: False)  # fmt: skip
    folders = Folders(engine, types.SimpleNamespace(rank=0, ranks=1), None, {})

    def stock(save_dir, tag, *_):
        path = os.path.join(save_dir, tag, "model_states.pt")
        engine.checkpoint_engine.save({"x": torch.full((9,), float(tag))}, path)
        return True

    for number, directory in enumerate("abcdea"):
        assert folders.save(stock, str(tmp_path / directory), str(number))
        assert len([each for each in _open_sessions.sessions if not each.is_closed]) == 1
    folders.settle()
    for number, directory in enumerate("abcdea"):
        folder = tmp_path / directory / str(number)
        assert torch.load(folder / "model_states.pt")["x"].tolist() == [float(number)] * 9
    latest = {name: (tmp_path / name / "latest").read_text() for name in "abcde"}
    assert latest == {"a": "5", "b": "1", "c": "2", "d": "3", "e": "4"}
    folders.close()
