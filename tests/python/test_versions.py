"""Goal: an older torch costs time, or is refused by name; it never costs bytes.

Method: what older versions lack is taken from the torch that is here, one thing at a time. Without
the functions of DLPack all of test_changes.py runs; an older Transformers is in
test_transformers.py.
"""

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402
from libckpt.adapters.torch import _guarded_memory, _modules  # noqa: E402


def test_a_torch_without_its_kind_of_buffers_tells_the_same_state(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    monkeypatch.delattr(torch.nn, "Buffer")
    state = _modules.state_of(model)
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], part) for name, part in model.state_dict().items())
    assert state["1.running_mean"] is model[1].running_mean  # Not by way of state_dict().


def test_without_the_wrapper_of_steps_their_hooks_are_taken_to_be_called(monkeypatch):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    monkeypatch.delattr(torch.optim.Optimizer, "profile_hook_step")
    assert _guarded_memory.calls_hooks(optimizer)


@pytest.mark.parametrize("name", ["float8_e5m2", "complex128"])
def test_a_type_that_this_torch_has_not_is_named(job, monkeypatch, name):
    session = job()
    session.save(1, {"t": torch.zeros(4, dtype=getattr(torch, name))}).captured.result(30)
    monkeypatch.delattr(torch, name)
    with pytest.raises(libckpt.Unsupported, match=f"type {name}, which torch .* does not have"):
        session.restore()


def test_an_optimizer_without_hooks_is_refused_by_guard(job, monkeypatch):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    monkeypatch.delattr(torch.optim.Optimizer, "register_step_pre_hook")
    with pytest.raises(libckpt.InvalidArgument, match="SGD was given.*register_step_pre_hook"):
        job().guard(optimizer)
