"""Goal: without a daemon the doors that have no session leave training to the framework's own saves
and loads, say so once, and never take it for a first start.

Method: a program of the daemon that is not there, before and after a life that stored a step.
test_jax_unopened.py has the same of JAX.
"""

import pytest

import libckpt

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

import libckpt.dcp  # noqa: E402
from libckpt.core import _open_sessions  # noqa: E402

UNCAPTURED = "training goes on, and steps are not captured in memory"


@pytest.fixture
def lose_daemon(runtime, monkeypatch):
    def lose():
        for session in list(_open_sessions.sessions):
            session.abandon()
        monkeypatch.setenv("LIBCKPT_DAEMON_PATH", "/nonexistent/ckptd")
        monkeypatch.setenv("LIBCKPT_RUNTIME_DIR", str(runtime.parent / "other"))

    yield lose
    for session in list(_open_sessions.sessions):
        session.abandon()


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def save(storage, value, checkpoint_id):
    state = {"value": torch.full((3,), float(value))}
    dcp.save(state, checkpoint_id=checkpoint_id, storage_writer=storage)


def loaded(storage, checkpoint_id):
    state = {"value": torch.zeros(3)}
    dcp.load(state, checkpoint_id=checkpoint_id, storage_reader=storage)
    return state["value"][0].item()


def test_dcp_goes_on_with_its_folders(alone, lose_daemon, caplog, tmp_path):
    lose_daemon()
    storage = libckpt.dcp.Storage("ckpt://lost")
    assert storage.find() is None
    for step in (1, 2):
        save(storage, step, f"ckpt://lost/step-{step}")
    save(storage, 2, tmp_path / "step-2")
    assert loaded(storage, tmp_path / "step-2") == 2
    assert caplog.text.count(UNCAPTURED) == 1
    assert caplog.text.count("ERROR") == 1
    with pytest.raises(CheckpointException, match="nothing can be read from memory"):
        loaded(storage, "ckpt://lost/latest")


def test_dcp_does_not_begin_anew_over_what_is_stored(alone, lose_daemon, tmp_path):
    storage = libckpt.dcp.Storage("ckpt://stored", dir=tmp_path)
    assert storage.find() is None
    save(storage, 4, "ckpt://stored/step-4")
    storage.session().flush()
    lose_daemon()
    storage = libckpt.dcp.Storage("ckpt://stored", dir=tmp_path)
    with pytest.raises(libckpt.Unavailable, match="step 4 in .* cannot be restored"):
        storage.find()


def test_dcp_raises_where_it_was_asked_to(alone, lose_daemon):
    lose_daemon()
    with pytest.raises(libckpt.Unavailable, match="ckptd"):
        libckpt.dcp.Storage("ckpt://asked", raise_on_error=True)
    with pytest.raises(libckpt.InvalidArgument):
        libckpt.dcp.Storage("ckpt://wrong", save_mem_interval="bogus")


class Hollow:
    def pop_tensors(self):
        return [torch.ones(3)]

    def insert_tensors(self, tensors):
        pass


def test_megatrons_local_manager_leaves_it_to_the_global_checkpoints(
    lose_daemon, caplog, tmp_path
):
    pytest.importorskip("megatron.core")
    from libckpt.megatron import LocalCheckpointManager

    lose_daemon()
    manager = LocalCheckpointManager(tmp_path / "local", session_id="s")
    assert manager.local_ckpt_dir == tmp_path / "local" / "s" / "0"
    assert manager.find_latest() == -1
    for iteration in (1, 2):
        assert manager.save(Hollow(), iteration) is None
    assert manager.find_latest() == -1
    with pytest.raises(libckpt.InvalidArgument, match="call find_latest"):
        manager.load()
    assert caplog.text.count(UNCAPTURED) == 1
    assert caplog.text.count("ERROR") == 1
    with pytest.raises(libckpt.InvalidArgument):
        LocalCheckpointManager(tmp_path / "wrong", save_mem_interval="bogus").find_latest()
