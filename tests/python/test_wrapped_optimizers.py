"""Goal: a guard works with what frameworks make of an optimizer.

Method: optimizers prepared by accelerate, and by a wrapper of Lightning's kind, are guarded; each
step must let the running capture end first, and a restore brings back the state before the step.
"""

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

SECONDS = 60
SIZE = 1 << 20


class Wrapper:
    """As Lightning's: no optimizer of torch, but it has one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)


def accelerated(optimizer):
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(cpu=True).prepare(optimizer)


@pytest.fixture(params=[accelerated, Wrapper, lambda optimizer: Wrapper(accelerated(optimizer))],
                ids=["accelerate", "wrapper", "both"])  # fmt: skip
def prepared(request):
    model = torch.nn.Linear(SIZE, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model.weight.grad = torch.ones_like(model.weight)
    return model, optimizer, request.param(optimizer)


def test_a_prepared_optimizer_is_guarded_and_its_step_waits(job, prepared):
    model, optimizer, wrapped = prepared
    wrapped.step()
    items = {"model": model, "optimizer": wrapped}
    session = job().guard(wrapped)
    assert [reference() for reference in session._tensors.optimizers] == [optimizer]
    saved = [model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone()]
    assert session.save(1, items).outcome == "started"
    assert "model.weight" in session._tensors.guarded_names()
    wrapped.step()
    assert session._tensors.mutations.running() is None  # The step has let the capture end.
    session.wait(1, "committed", SECONDS)
    assert not torch.equal(model.weight, saved[0])
    session.restore(items)
    assert torch.equal(model.weight, saved[0])
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], saved[1])


@pytest.mark.parametrize("given", [None, 3, Wrapper(None), Wrapper(Wrapper(3))])
def test_what_has_no_optimizer_is_refused_by_name(job, given):
    session = job()
    with pytest.raises(libckpt.InvalidArgument, match=f"guard: {type(given).__name__} was given"):
        session.guard(given)
