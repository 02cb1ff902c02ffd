"""Goal: what writes a guarded tensor while it is captured waits first, or the capture is not seen.

Method: tensors are written right after a save by whatever does so in a training: another optimizer,
a forward pass that renormalizes, a user's own lines. Where the order of the threads matters, the
one that settles captures behind the training is held back, so that every write comes in time.
"""

import gc
import itertools
import os
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402
from libckpt import _written  # noqa: E402

LARGE = 9 << 20  # Elements: copied for some milliseconds.


@pytest.fixture
def nobody_settles(monkeypatch):
    """Captures are settled by calls of the training thread only."""
    monkeypatch.setattr(_written.Written, "settle_copied", lambda self, step: None)


def until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline


def save_from(session, step, items):
    """The step that was captured: a Slot that was given back is not granted again at once."""
    steps = itertools.count(step)
    taken = []
    until(lambda: taken.append(next(steps)) or session.save(taken[-1], items))
    return taken[-1]


def saved(session, step, items):
    session.wait(step, "captured")
    return session.restore(step=step).items


def test_the_step_of_another_optimizer_waits_for_the_capture(job, nobody_settles):
    model = torch.nn.Linear(4, 4)
    first = torch.optim.Adam(model.parameters())
    session = job().guard(first)
    second = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = model.weight.detach().clone()
    assert session.save(1, {"model": model})
    second.step()
    assert session.counts()["failed"] == 0
    assert torch.equal(saved(session, 1, {"model": model})["model"]["weight"], before)
    assert not torch.equal(model.weight, before)


def test_a_write_in_mid_capture_drops_it_and_is_told_by_name(job, nobody_settles):
    model = torch.nn.Embedding(100, 8, max_norm=1.0)
    other = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    session = job().guard(optimizer)
    items = {"model": model, "other": other}
    with torch.no_grad():
        model.weight.fill_(10.0)
    assert session.save(1, items)
    model(torch.arange(50))  # Renormalizes these rows.
    optimizer.step()
    with pytest.raises(libckpt.CheckpointError):  # There is no newer one yet.
        session.wait(1, "captured", 0)
    step = save_from(session, 2, items)
    assert session.counts()["failed"] == 1
    assert '"model.weight" changed while' in session.counts()["last_error"]
    # From now on that one is copied before a save returns, and the others are not.
    assert session._tensors.guarded_names() == {"other.weight", "other.bias"}
    before = model.weight.detach().clone()
    model(torch.arange(100))
    assert torch.equal(saved(session, step, items)["model"]["weight"], before)
    assert session.counts()["failed"] == 1


def write_by_hand(tensor):
    tensor.fill_(-1)


def write_a_view(tensor):
    tensor.view(-1)[LARGE // 2 :].zero_()


def write_through_an_alias(tensor):
    tensor.detach().mul_(2)


def write_in_another_mode(tensor):
    with torch.inference_mode():
        tensor.copy_(torch.zeros_like(tensor))


@pytest.mark.parametrize(
    "write", [write_by_hand, write_a_view, write_through_an_alias, write_in_another_mode]
)
def test_what_is_seen_is_whole_whenever_the_write_comes(job, write):
    parameter = torch.nn.Parameter(torch.zeros(LARGE))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    session = job().guard(optimizer)
    session.prepare({"p": parameter})
    for step in range(1, 5):
        session._tensors._written.names.clear()  # It is left for later again.
        with torch.no_grad():
            parameter.fill_(step)
            started = session.save(step, {"p": parameter})
            write(parameter)
        session.finish_capture()
        if started and session.counts()["failed"] == session._failed:
            try:
                found = saved(session, step, {})["p"]
            except libckpt.NotFound:
                continue
            assert found.min() == found.max() == step


def test_a_capture_is_told_without_a_further_call(job):
    model = torch.nn.Linear(4, 4)
    session = job().guard(torch.optim.SGD(model.parameters(), lr=0.1))
    assert session.save(1, {"model": model})
    until(lambda: session.counts()["captured"] == 1)


def test_no_thread_of_python_and_none_in_a_fork(job):
    model = torch.nn.Linear(4, 4)
    threads = set(threading.enumerate())
    session = job().guard(torch.optim.SGD(model.parameters(), lr=0.1))
    assert session.save(1, {"model": model})
    until(lambda: session.counts()["captured"] == 1)
    assert set(threading.enumerate()) <= threads
    worker = os.fork()
    if worker == 0:
        session._tensors.let_go()  # Waits for no thread that is not there.
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 7
    assert session.save(2, {"model": model})
    until(lambda: session.counts()["captured"] == 2)


def test_a_member_is_guarded_by_the_counts_of_its_tensors(job, nobody_settles):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job().guard(optimizer)
    items = {"model.pt": libckpt.TorchMember(model)}
    assert session.save(1, items)
    with torch.no_grad():
        model.weight.zero_()
    step = save_from(session, 2, items)
    assert "model.pt//data/" in session.counts()["last_error"]
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.fill_(7)
    assert torch.equal(saved(session, step, items)["model.pt"]["weight"], before)


def test_what_nobody_counts_is_copied_before_the_save_returns(job, nobody_settles):
    with torch.inference_mode():
        tensor = torch.ones(4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1)
    optimizer.state[optimizer.param_groups[0]["params"][0]]["own"] = tensor
    session = job().guard(optimizer)
    assert session.save(1, {"t": tensor, "p": optimizer.param_groups[0]["params"][0]})
    assert session._tensors.guarded_names() == {"p"}
    with torch.inference_mode():
        tensor.zero_()
    assert torch.equal(saved(session, 1, {})["t"], torch.ones(4))


def test_a_close_settles_what_it_finds(job, nobody_settles, tmp_path):
    model = torch.nn.Linear(4, 4)
    session = job(dir=tmp_path / "dir").guard(torch.optim.SGD(model.parameters(), lr=0.1))
    assert session.save(1, {"model": model})
    session.close()
    again = job(dir=tmp_path / "dir")
    assert again.restore().step == 1


def test_the_frames_of_the_main_thread_are_left_alone(job, monkeypatch):
    looked = []
    monkeypatch.setattr(_written._core, "instructions", lambda threads: looked.append(threads))
    model = torch.nn.Linear(4, 4)
    session = job().guard(torch.optim.SGD(model.parameters(), lr=0.1))
    assert session.save(1, {"model": model})
    until(lambda: session.counts()["captured"] == 1)
    assert looked == []


def test_a_capture_of_another_thread_is_told_when_that_got_on_or_has_ended(job):
    model = torch.nn.Linear(4, 4)
    session = job().guard(torch.optim.SGD(model.parameters(), lr=0.1))
    started, may_end = [], threading.Event()

    def train():
        started.append(session.save(1, {"model": model}))
        until(lambda: session.counts()["captured"] == 1)
        started.append(session.save(2, {"model": model}))
        may_end.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    until(lambda: len(started) == 2 or not thread.is_alive())
    may_end.set()
    thread.join()
    assert all(started)
    until(lambda: session.counts()["captured"] == 2)


def test_no_garbage_is_collected_while_the_objects_of_frames_are_made():
    may_end, threads, collected = threading.Event(), [], []
    for _ in range(20):
        threads.append(threading.Thread(target=may_end.wait, args=(60,)))
        threads[-1].start()
    numbers = [thread.ident for thread in threads]

    def note(phase, _):
        collected.append(phase)

    before = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(note)
    try:
        gc.set_threshold(1)
        here = len(collected)
        _written._core.instructions(numbers)
        there = len(collected)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
        may_end.set()
        for thread in threads:
            thread.join()
    assert gc.isenabled()
    assert here == there
    assert _written._core.instructions(numbers) == [None] * 20
