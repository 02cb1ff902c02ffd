"""Goal: what writes a guarded tensor while it is captured waits first, or the capture is not seen.

Method: tensors are written right after a save by whatever does so in a training: another optimizer,
a forward pass that renormalizes, a user's own lines. Then one of the calls is made that judge a
capture, on the thread that trains and on others.
"""

import concurrent.futures
import itertools
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

LARGE = 9 << 20  # Elements: copied for some milliseconds.


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


def test_the_step_of_another_optimizer_waits_for_the_capture(job):
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


def test_a_write_in_mid_capture_drops_it_and_is_told_by_name(job):
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


@pytest.mark.parametrize("as_array", [False, True])
def test_a_write_to_the_parameter_is_seen_where_its_data_is_saved(job, as_array):
    parameter = torch.nn.Parameter(torch.zeros(100))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    session = job().guard(optimizer)
    data = parameter.data  # The same memory, and writes of its own that are counted.
    array = libckpt.Array("w", data, global_shape=data.shape, flat=0)
    items, arrays = ({}, [array]) if as_array else ({"w": data}, [])
    steps = itertools.count(1)

    def save():
        until(lambda: session.save(next(steps), items, arrays=arrays))

    save()
    session.finish_capture()
    assert session.counts()["failed"] == 0
    save()
    with torch.no_grad():
        parameter.add_(1.0)
    session.finish_capture()
    until(lambda: session.counts()["failed"] == 1)  # The library drops it when its copy ends.
    assert '"w" changed while' in session.counts()["last_error"]


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
def test_a_committed_step_is_whole_whenever_the_write_comes(job, write):
    parameter = torch.nn.Parameter(torch.zeros(LARGE))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    session = job().guard(optimizer)
    session.prepare({"p": parameter})
    for step in range(1, 5):
        session._tensors.mutations.names.clear()  # It is left for later again.
        with torch.no_grad():
            parameter.fill_(step)
            started = session.save(step, {"p": parameter})
            write(parameter)
        session.finish_capture()
        if started and session.counts()["failed"] == session._failures.count:
            try:
                found = saved(session, step, {})["p"]
            except libckpt.NotFound:
                continue
            assert found.min() == found.max() == step


def test_the_training_thread_judges_a_capture_by_asking_where_it_is(job):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job().guard(optimizer)
    ticket = session.save(1, {"model": model})
    until(ticket.captured.done)
    assert session.counts()["captured"] == 1


def test_a_thread_that_only_asks_accepts_no_capture_whose_tensors_were_written(job):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job().guard(optimizer)
    assert session.save(1, {"model": model})
    with torch.no_grad():
        model.weight.zero_()
    until(lambda: session._client.copied() == 1)
    assert session.counts()["captured"] is None
    assert session._tensors.mutations.running() is None
    with pytest.raises(libckpt.NotFound):
        session.wait(1, "captured")


def test_a_step_that_is_saved_again_is_not_taken_for_copied_before_it_is(job, tmp_path):
    parameter = torch.nn.Parameter(torch.zeros(LARGE))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    session = job(dir=tmp_path / "dir", save_storage_interval=1).guard(optimizer)
    items = {"p": parameter}
    first = save_from(session, 1, items)
    session.wait(first, "durable")
    second = save_from(session, first + 1, items)
    session.wait(second, "durable")
    for _ in range(20):  # A copy may have ended before it is asked for.
        session.restore(items, step=first)
        again = save_from(session, second, items)
        if session._client.copied() is None:
            return
        session.wait(again, "durable")
    pytest.fail("the copies of the first time count")


def test_another_thread_does_not_judge_while_the_one_that_trains_may_write(job):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job().guard(optimizer)
    ticket = session.save(1, {"model": model})
    until(lambda: session._client.copied() == 1)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert not threads.submit(ticket.captured.done).result()
        with pytest.raises(libckpt.Unavailable, match="judged by the thread that trains"):
            threads.submit(ticket.captured.result, 0.0).result()
        waiting = threads.submit(ticket.captured.result, 60.0)
        session.finish_capture()
        waiting.result()


@pytest.fixture
def stepped(job, tmp_path):
    """A session whose optimizer was stepped by another thread, which still lives; and its items."""
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.grad = torch.ones(4)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    session = job(dir=tmp_path / "dir").guard(optimizer)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        threads.submit(optimizer.step).result()
        yield session, {"p": parameter}, lambda: threads.submit(optimizer.step).result()


def test_the_thread_that_only_saves_does_not_judge_while_the_one_that_steps_may_write(stepped):
    session, items, step = stepped
    ticket = session.save(1, items)
    until(lambda: session._client.copied() == 1)
    with pytest.raises(libckpt.Unavailable, match="call finish_capture"):
        ticket.captured.result(0.0)
    assert session.counts()["captured"] is None
    step()
    ticket.captured.result()


def test_a_save_drops_the_capture_that_it_may_not_judge(stepped):
    session, items, _ = stepped
    assert session.save(1, items)
    step = save_from(session, 2, items)
    session.finish_capture()
    session.wait(step, "captured")
    assert session.counts()["failed"] == 1


def test_a_close_says_that_no_thread_trains_any_more(stepped, job, tmp_path):
    session, items, _ = stepped
    assert session.save(1, items)
    session.close()
    assert job(dir=tmp_path / "dir").restore().step == 1


def test_a_flush_brings_the_capture_that_nobody_has_judged_to_storage(job, tmp_path):
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    session = job(dir=tmp_path / "dir").guard(optimizer)
    assert session.save(1, {"p": parameter})
    session.flush()
    assert session.counts()["durable"] == 1


def test_no_thread_of_python(job):
    model = torch.nn.Linear(4, 4)
    threads = set(threading.enumerate())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job().guard(optimizer)
    assert session.save(1, {"model": model})
    until(lambda: session.counts()["captured"] == 1)
    assert set(threading.enumerate()) <= threads


def test_a_member_is_guarded_by_the_counts_of_its_tensors(job):
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


def test_a_tensor_whose_writes_nobody_counts_is_copied_before_the_save_returns(job):
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


def test_a_close_settles_what_it_finds(job, tmp_path):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job(dir=tmp_path / "dir").guard(optimizer)
    assert session.save(1, {"model": model})
    session.close()
    again = job(dir=tmp_path / "dir")
    assert again.restore().step == 1


def test_a_save_of_another_thread_is_judged_by_that_or_once_it_has_ended(job):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job().guard(optimizer)
    started = []

    def train():
        started.append(session.save(1, {"model": model}))
        until(lambda: session.counts()["captured"] == 1)
        started.append(session.save(2, {"model": model}))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert all(started)
    until(lambda: session.counts()["captured"] == 2)
