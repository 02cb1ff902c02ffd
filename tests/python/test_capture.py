"""Goal: a capture holds the bytes of its call, whatever becomes of the tensors meanwhile.

Method: large tensors are saved, with a guard and without one, and at once given back, resized,
moved or replaced by every means that torch has; what is restored is compared with what was there.
"""

import gc
import threading
from multiprocessing.reduction import ForkingPickler

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

# Elements: what is as large goes back to the system at once when it is freed.
SIZE = 9 << 20
HEAD_SIZE = 1 << 18


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


def exchange_tensors(model, optimizer):
    for name in ("one", "other"):
        torch.utils.swap_tensors(torch.nn.Parameter(torch.zeros(1)), getattr(model, name))


def convert(model, optimizer):
    model.double()


def convert_by_exchange(model, optimizer):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def convert_to_new_parameters(model, optimizer):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


WAYS = [give_back, grow, grow_as_another, replace_data, set_storage, give_back_typed, drop_state,
        step, exchange_tensors, convert, convert_by_exchange,
        convert_to_new_parameters]  # fmt: skip


def grow_by_a_function(head):
    torch.resize_as_(head.data, torch.empty(2 * HEAD_SIZE))


def share(head):
    head.share_memory_()


def share_by_name(head):
    stock = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        head.share_memory_()
    finally:
        torch.multiprocessing.set_sharing_strategy(stock)


def put_into_a_queue(head):
    ForkingPickler.dumps({"head": head.detach()})  # As a queue does with it.


def exchange_memory(head):
    head.untyped_storage()._swap_data_ptr_(torch.zeros(HEAD_SIZE).untyped_storage())


def exchange_memory_of_another(head):
    torch.zeros(HEAD_SIZE).untyped_storage()._swap_data_ptr_(head.untyped_storage())


def give_a_storage_of_another(head):
    head.untyped_storage()._set_cdata(torch.zeros(HEAD_SIZE).untyped_storage()._cdata)


MOVES = [grow_by_a_function, share, share_by_name, put_into_a_queue, give_a_storage_of_another]
if hasattr(torch.UntypedStorage, "_swap_data_ptr_"):  # Newer versions have it.
    MOVES += [exchange_memory, exchange_memory_of_another]


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


def test_a_capture_leaves_the_memory_of_a_tensor_before_it_goes(job, monkeypatch):
    """Which it may read to its end where the tensor is small, and moves in no time."""
    session, left = job(), []
    registration = session._tensors
    stock = registration.finish

    def finish():
        left.append(head.data_ptr())
        stock()

    for number, move in enumerate(MOVES, 1):
        model = torch.nn.Linear(4, HEAD_SIZE)
        head = model.bias
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        session.guard(optimizer)
        assert session.save(number, {"model": model}, wait=60)
        before = head.data_ptr()
        with monkeypatch.context() as patched:
            patched.setattr(registration, "finish", finish)
            move(head)
        assert left == [before], move.__name__
        left.clear()
        del optimizer
        session.finish_capture()


def is_free(lock):
    """Whether another thread would get it now."""
    found = []

    def ask():
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join()
    return found[0]


def test_a_storage_moves_before_a_save_reads_addresses_or_after_it(job, monkeypatch):
    """A queue of torch.multiprocessing moves it in a thread of its own."""
    from libckpt.adapters.torch import _guard

    model, optimizer = make(1)
    session = job().guard(optimizer)
    registration, seen = session._tensors, []
    lock = registration.mutations.addresses
    stock = registration._save

    def save(*arguments):
        seen.append(is_free(lock))
        return stock(*arguments)

    monkeypatch.setattr(registration, "_save", save)
    assert session.save(1, {"model": model}, wait=60)
    _guard._between_saves(lambda _: seen.append(is_free(lock)))(model.one.untyped_storage())
    assert seen == [False, False]
    assert is_free(lock)


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
