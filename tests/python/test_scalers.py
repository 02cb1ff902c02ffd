"""Goal: the state of a GradScaler costs a step no wait for the GPU, and comes back as it was.

Method: every read of a tensor's value on the host is counted while a scaler is saved; then scalers
of all kinds are saved, restored, and compared with what their state_dict() says.
"""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

SECONDS = 60


class Reads(TorchDispatchMode):
    """Counts what a GPU would have to be waited for: item(), float(), bool(), tolist()."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(options or {}))


class Own(torch.amp.GradScaler):
    def state_dict(self):
        return {**super().state_dict(), "mine": 3}


def scaler_of(kind=torch.amp.GradScaler, scaled=True, **options):
    scaler = kind("cpu", init_scale=1024.0, growth_interval=3, **options)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(2 if scaled else 0):
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler


def test_the_counting_notices_a_read():
    scaler = scaler_of()
    with Reads() as reads:
        scaler.state_dict()
    assert reads.count == 2


def test_a_save_reads_no_value_of_a_scaler(job):
    scaler, session = scaler_of(), job()
    with Reads() as reads:
        session.save(1, {"scaler": scaler}).committed.result(SECONDS)
        session.save(2, {"training": [{"scaler": scaler}]}).captured.result(SECONDS)
    assert reads.count == 0


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.amp.GradScaler, {}),
        (torch.amp.GradScaler, {"scaled": False}),
        (torch.amp.GradScaler, {"enabled": False}),
        (Own, {}),
    ],
    ids=["scaled", "unused", "disabled", "overridden"],
)
@pytest.mark.parametrize("is_used", [True, False])
def test_a_scaler_comes_back_as_it_was(job, kind, options, is_used):
    scaler, session = scaler_of(kind, **options), job()
    state = scaler.state_dict()
    session.save(1, {"scaler": scaler}).committed.result(SECONDS)
    fresh = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=scaler.is_enabled())
    if is_used and fresh.is_enabled():
        fresh.scale(torch.ones(3))
    restored = session.restore({"scaler": fresh})
    assert restored.items["scaler"] == state
    assert {type(part) for part in restored.items["scaler"].values()} <= {int, float}
    if fresh.is_enabled():
        assert fresh.state_dict().items() <= state.items()
        assert fresh.scale(torch.ones(1)).item() == state["scale"]


def test_a_change_after_the_save_is_not_in_it(job):
    scaler, session = scaler_of(), job()
    state = scaler.state_dict()
    session.save(1, {"scaler": scaler})
    scaler.update(new_scale=2.0)
    session.wait(1, "committed", SECONDS)
    session.restore({"scaler": scaler})
    assert scaler.state_dict() == state
