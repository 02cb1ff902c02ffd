"""Goal: what a program over megatron-core meets besides training: EasyCkpt begun twice, a release
where folders are, LIBCKPT_DISABLE=1 behind the hook and the manager of local checkpoints.

Method: sessions of this process, and stand-ins for Megatron's objects and its training modules.
"""

import importlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import libckpt  # noqa: E402
from libckpt import megatron  # noqa: E402
from libckpt.megatron._memory import Memory  # noqa: E402


@pytest.fixture
def begun(runtime, monkeypatch):
    monkeypatch.setattr(megatron, "_current", None)
    yield lambda **options: megatron.initialize_easyckpt(1, 0, 0, job="job", **options)
    if megatron._current is not None:
        megatron._current.abandon()


def test_easyckpt_that_is_begun_again_finds_its_memory(begun):
    """As where a cell of a notebook runs again."""
    first = begun()
    session = first.memory.session
    session.restore_or({})
    session.save(3, {"x": 1}, wait=60)
    session.wait(3, "committed")
    second = begun()
    assert session.is_closed
    assert second.memory.session.restore().step == 3


@pytest.mark.parametrize("text", ["release", "iter_7"])
def test_training_does_not_begin_over_a_release(begun, tmp_path, text):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(f"{text}\n")
    easy = begun(load_dir=tmp_path)
    with pytest.raises(libckpt.Unsupported, match=f'says "{text}", which is no iteration'):
        easy.load([torch.nn.Linear(2, 2)], None, None)


def test_without_a_tracker_training_begins(begun, tmp_path, caplog):
    assert begun(load_dir=tmp_path).load([torch.nn.Linear(2, 2)], None, None) == (0, 0)
    assert "nothing to resume from: training begins at iteration 0" in caplog.text


class Overlapping:
    """Counts how often its parameters are gathered outside of a forward pass."""

    ddp_config = types.SimpleNamespace(overlap_param_gather=True)
    remove_forward_pre_hook_handles = (1,)
    gathered = 0

    def disable_forward_pre_hook(self):
        self.gathered += 1

    def enable_forward_pre_hook(self):
        pass


@pytest.mark.parametrize(
    ("interval", "expected"), [(3, 2), ("3", 2), ("never", 0), ("1h", 6), (1, 6)]
)
def test_parameters_are_gathered_for_the_steps_that_may_be_due(runtime, interval, expected):
    memory = Memory("job", {"save_mem_interval": interval})
    memory.error = "a model that nobody knows"  # It is refused behind the gathering.
    model = Overlapping()
    for iteration in range(1, 7):
        memory.save(iteration, ([model], None, None), {})
    memory.session.abandon()
    assert model.gathered == expected


class Hollow:
    """As NVRx's TensorAwareStateDict."""

    def pop_tensors(self):
        return [torch.ones(2)]

    def insert_tensors(self, tensors):
        pass


def test_disabled_the_local_manager_does_nothing_and_says_nothing(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    manager = megatron.LocalCheckpointManager(tmp_path / "local")
    assert manager.find_latest() == -1
    assert manager.save(Hollow(), 1) is None
    for finalize in manager.save(Hollow(), 2, is_async=True).finalize_fns:
        finalize()
    assert manager.find_latest() == -1
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.parametrize("is_disabled", [False, True])
def test_disabled_the_hook_replaces_nothing(monkeypatch, is_disabled):
    def load_checkpoint(model, optimizer, opt_param_scheduler):
        pass

    def save_checkpoint(iteration, model, optimizer, opt_param_scheduler):
        pass

    def checkpoint_and_decide_exit(model, optimizer, opt_param_scheduler, iteration):
        pass

    saving = types.SimpleNamespace(load_checkpoint=load_checkpoint, save_checkpoint=save_checkpoint,
                                   __name__="checkpointing")  # fmt: skip
    loop = types.SimpleNamespace(checkpoint_and_decide_exit=checkpoint_and_decide_exit,
                                 __name__="training")  # fmt: skip
    local = types.SimpleNamespace(LocalCheckpointManager=None)
    modules = {"megatron.training.checkpointing": saving, "megatron.training.training": loop}
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    hook = importlib.import_module("libckpt.megatron.hook")
    modules[hook.NVRX] = local
    monkeypatch.setattr(hook, "_imported", lambda *names: modules.get(names[0]))
    monkeypatch.setenv("LIBCKPT_DISABLE", "1" if is_disabled else "0")
    hook.install()
    stock = [load_checkpoint, save_checkpoint, checkpoint_and_decide_exit, None]
    found = [saving.load_checkpoint, saving.save_checkpoint, loop.checkpoint_and_decide_exit,
             local.LocalCheckpointManager]  # fmt: skip
    assert [each is other for each, other in zip(found, stock, strict=True)] == [is_disabled] * 4
    sys.modules.pop("libckpt.megatron.hook")
