"""Goal: a capture holds the bytes of its call, whatever becomes of the tensors meanwhile.

Method: large tensors are saved, with a guard and without one, and at once given back, resized or
replaced by every means that torch has; what is restored is compared with what was there.
"""

import gc

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

# Elements: what is as large goes back to the system at once when it is freed.
SIZE = 9 << 20


def give_back(model, optimizer):
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)  # As FSDP does.


def grow(model, optimizer):
    for parameter in model.parameters():
        parameter.data.resize_(2 * SIZE)


def grow_as_another(model, optimizer):
    for parameter in model.parameters():
        parameter.data.resize_as_(torch.empty(2 * SIZE))


def replace_data(model, optimizer):
    for parameter in model.parameters():
        parameter.data = torch.zeros(1)


def set_storage(model, optimizer):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.set_(torch.zeros(1))


def give_back_typed(model, optimizer):
    for parameter in model.parameters():
        parameter.data._typed_storage()._resize_(0)


def drop_state(model, optimizer):
    for state in optimizer.state.values():
        state["momentum_buffer"].untyped_storage().resize_(0)
    optimizer.state.clear()


def step(model, optimizer):
    optimizer.step()


WAYS = [give_back, grow, grow_as_another, replace_data, set_storage, give_back_typed, drop_state,
        step]  # fmt: skip


def make(value):
    model = torch.nn.Module()
    for name in ("one", "other"):
        model.register_parameter(name, torch.nn.Parameter(torch.full((SIZE,), float(value))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_a_tensor_that_goes_while_it_is_captured_is_captured_as_it_was(job, is_guarded):
    session = job()
    number = 0
    for value, change in enumerate(WAYS, 1):
        model, optimizer = make(value)
        items = {"bare": dict(model.named_parameters()), "optimizer": optimizer}
        if is_guarded:
            session.guard(optimizer)
        started = False
        while not started:  # While no Slot is free.
            number += 1
            started = bool(session.save(number, items))
        change(model, optimizer)
        others = [torch.full((SIZE,), -1.0) for _ in range(2)]  # Where they were, if they went.
        session.wait(number, "captured", 60)
        found = session.restore(step=number).items
        for name in ("one", "other"):
            assert found["bare"][name].eq(value - 1).all(), change.__name__
        states = found["optimizer"]["state"].values()
        assert all(state["momentum_buffer"].eq(1).all() for state in states), change.__name__
        del others


def test_a_session_that_is_dropped_while_it_captures_takes_its_tensors_along(job, runtime):
    job("other")  # So that the daemon stays.
    for number in range(1, 6):
        session = libckpt.init("job", raise_on_error=True)
        model, optimizer = make(number)
        session.guard(optimizer)
        session.start_fresh()
        session.save(number, {"model": model})
        del session, model, optimizer  # As at the end of a function, without a close.
        gc.collect()
        others = [torch.full((SIZE,), -1.0) for _ in range(2)]
        restored = job().restore()
        assert restored.items["model"]["one"].eq(restored.step - 1).all()
        assert restored.items["model"]["other"].eq(restored.step - 1).all()
        del restored, others
        job_sessions_end()


def job_sessions_end():
    from libckpt.core import _open_sessions

    for each in list(_open_sessions.sessions):
        if each.job == "job":
            each.abandon()
