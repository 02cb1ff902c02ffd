"""Goal: what went wrong in other checkpointing libraries does not go wrong here.

Method: each test does what brought out a bug of a peer, and looks at the bytes that come back. The
numbers are those of the list of trials; the leak, P17, is in test_processes.py.
"""

import gc
import json

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

import libckpt  # noqa: E402
import libckpt.torch  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402


@pytest.fixture
def outboxes(runtime):
    yield
    for box in list(_publish_queue._queues):
        box.close()
    libckpt.torch._queues.by_directory.clear()


def save_until_started(session, step, items):
    """The step that was captured: some are skipped while there is no Slot of a new size."""
    while not session.save(step, items):
        session.prepare(items)
        step += 1
    session.wait(step, "committed", 30)
    return step


def test_p1_each_save_has_the_newest_values_also_of_tensors_that_moved(job):
    session = job()
    kept = []
    for step in range(1, 30):
        tensor = torch.full((1000,), float(step))  # Elsewhere each time, with the others alive.
        kept.append(tensor)
        if not session.save(step, {"a": tensor, "same": kept[0]}):
            continue
        session.wait(step, "committed", 30)
        found = session.restore(step=step).items
        assert set(found["a"].tolist()) == {float(step)}
        assert set(found["same"].tolist()) == {1.0}


@pytest.mark.parametrize("is_guarded", [False, True])
def test_p4_what_is_changed_right_after_the_call_is_not_in_the_capture(job, is_guarded):
    session = job()
    model = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_guarded:
        session.guard(optimizer)
    model(torch.ones(1, 1024)).sum().backward()
    for step in range(1, 20):
        buffer = torch.full((1 << 20,), float(step))
        expected = model.weight.detach().clone()
        is_started = session.save(step, {"model": model, "buffer": buffer})
        buffer.fill_(-1)
        optimizer.step()
        if is_started:
            session.wait(step, "captured", 30)
            found = session.restore(step=step).items
            assert torch.equal(found["model"]["weight"], expected), step
            assert found["buffer"].eq(step).all(), step


def test_p5_a_set_has_the_step_of_its_call_however_late_it_is_published(tmp_path, outboxes):
    state = {"step": 0}
    for step in range(1, 6):
        state["step"] = step
        with libckpt.torch.checkpoint(tmp_path, step=step):
            torch.save(state, tmp_path / "state.pt")
            (tmp_path / "state.json").write_text(json.dumps(state))
        state["step"] = -1  # Long before it is on storage.
    libckpt.torch.wait()
    assert torch.load(tmp_path / "state.pt") == {"step": 5}
    assert json.loads((tmp_path / "state.json").read_text()) == {"step": 5}


def test_p14_what_is_stored_has_what_was_added_and_not_what_was_removed(job, tmp_path):
    session = job(dir=tmp_path / "dir", save_storage_interval=1)
    items = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
    step = 0
    for change in (
        lambda: None,
        lambda: items.update(c=torch.ones(7)),
        lambda: items.pop("b"),
        lambda: items.update(a=torch.full((300_000,), 2.0)),
        lambda: items.update(a=torch.ones(1, dtype=torch.bfloat16)),
    ):
        change()
        step = save_until_started(session, step + 1, items)
        session.wait(step, "durable", 30)
        directory = tmp_path / "dir" / f"step-{step:09}"
        found = safetensors_torch.load_file(directory / "rank-00000.safetensors")
        assert {name: part.shape for name, part in found.items()} == {
            name: part.shape for name, part in items.items()
        }
        assert all(torch.equal(part, items[name]) for name, part in found.items())


def test_p16_tensors_may_be_dropped_right_after_the_call(job):
    session = job()
    for step in range(1, 10):
        model = torch.nn.Linear(1024, 1024)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session.guard(optimizer)
        expected = model.weight.detach().clone()
        is_started = session.save(step, {"model": model})
        del model, optimizer
        gc.collect()
        others = [torch.full((1 << 20,), -1.0) for _ in range(4)]  # Where it was, if it was freed.
        if is_started:
            session.wait(step, "captured", 30)
            assert torch.equal(session.restore(step=step).items["model"]["weight"], expected)
        del others


def test_p20_a_directory_is_no_checkpoint_because_of_its_name(job, tmp_path, programs):
    directory = tmp_path / "dir"
    session = job(dir=directory, save_storage_interval=1)
    session.save(3, {"a": torch.ones(3)}).durable.result(30)
    session.close()
    for name in ("9", "checkpoint-9", "step-9", "step-000000009.tmp", "iter_0000009"):
        (directory / name).mkdir()
    (directory / "step-000000009").mkdir()
    (directory / "step-000000008").mkdir()
    (directory / "step-000000008" / "manifest.json").write_text('{"format": "libckpt-man')
    assert job(dir=directory).restore().step == 3


def test_p21_a_file_that_somebody_has_mapped_keeps_its_bytes(tmp_path, outboxes):
    def save(value):
        with libckpt.torch.checkpoint(tmp_path, step=value):
            torch.save(torch.full((1 << 18,), value), tmp_path / "set.pt")
        libckpt.torch.save(torch.full((1 << 18,), value), tmp_path / "file.pt")
        libckpt.torch.wait()

    save(1)
    mapped = [torch.load(tmp_path / name, mmap=True) for name in ("set.pt", "file.pt")]
    for value in range(2, 6):
        save(value)
    assert all(part.eq(1).all() for part in mapped)
    assert all(torch.load(tmp_path / name).eq(5).all() for name in ("set.pt", "file.pt"))
