"""Goal: a tensor is captured as it lies in memory, and kept alive only while it is captured.

Method: dense tensors in every order of dimensions are saved and restored into tensors of the same
and of other orders, and the number of copies is counted; memory that the trainer drops after a
capture must be gone, which a weak reference to it tells.
"""

import gc
import itertools
import weakref

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import libckpt  # noqa: E402

SHAPE = (4, 3, 5, 2)
ORDERS = list(itertools.permutations(range(4)))


def lying(order, value=None):
    """A tensor of the shape, whose dimensions lie in the order."""
    inverse = sorted(range(4), key=order.__getitem__)
    made = torch.rand([SHAPE[i] for i in order]).permute(inverse)
    assert made.shape == SHAPE
    return made if value is None else made.fill_(value)


def commit(session, step, items):
    while not session.save(step, items):
        step += 1
    session.wait(step, "committed", 30)
    return step


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_order_comes_back_where_it_is_and_in_others(job, order):
    session = job()
    tensor = lying(order)
    expected, strides, address = tensor.clone(), tensor.stride(), tensor.data_ptr()
    commit(session, 1, {"x": tensor, "nested": {"y": [tensor.double()]}})
    found = session.restore().items
    assert torch.equal(found["x"], expected)
    assert found["x"].stride() == strides
    assert torch.equal(found["nested"]["y"][0], expected.double())
    tensor.zero_()
    session.restore({"x": tensor}, strict=False)
    assert torch.equal(tensor, expected)
    assert (tensor.stride(), tensor.data_ptr()) == (strides, address)
    for other in ORDERS[::5]:
        into = lying(other, 0.0)
        session.restore({"x": into}, strict=False)
        assert torch.equal(into, expected), other


def test_an_order_that_changes_between_two_saves_is_seen(job):
    session, step = job(), 0
    for order in [*ORDERS[::4], ORDERS[0]]:
        tensor = lying(order)
        step = commit(session, step + 1, {"x": {"y": tensor}})
        assert torch.equal(session.restore(step=step).items["x"]["y"], tensor)


def test_arrays_and_small_tensors_that_move_keep_their_order(job):
    session, step = job(), 0
    for _ in range(4):
        array = numpy.asfortranarray(numpy.random.rand(3, 4))
        tensor = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
        step = commit(session, step + 1, {"a": array, "t": tensor})
        found = session.restore(step=step).items
        assert numpy.array_equal(found["a"], array)
        assert torch.equal(found["t"], tensor)


def test_one_memory_in_two_orders_is_stored_once_and_fills_both(job):
    square = torch.rand(6, 6)
    expected = square.clone()
    session = job()
    commit(session, 1, {"a": square, "b": square.t(), "c": {"d": square.t()}})
    found = session.restore().items
    assert torch.equal(found["a"], expected)
    assert torch.equal(found["b"], expected.t())
    items = {"a": torch.zeros(6, 6), "b": torch.zeros(6, 6), "c": {"d": torch.zeros(6, 6)}}
    session.restore(items)
    assert torch.equal(items["a"], expected)
    assert torch.equal(items["b"], expected.t())
    assert torch.equal(items["c"]["d"], expected.t())


def test_a_module_in_channels_last_is_captured_without_a_copy(job, monkeypatch):
    def model():
        made = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16))
        return made.to(memory_format=torch.channels_last)

    from libckpt.core import _views

    first, second = model(), model()
    optimizer = torch.optim.AdamW(first.parameters())
    first(torch.rand(2, 8, 5, 5)).sum().backward()
    optimizer.step()
    session = job().guard(optimizer)
    items = {"model": first, "optimizer": optimizer}
    commit(session, 1, items)
    views = session._tensors._views._views
    assert not any(view.is_buffered for view in views.values())
    assert views["model.0.weight"].address == first[0].weight.data_ptr()
    assert views["model.0.weight"].shape == (16, 3, 3, 8)
    assert isinstance(views["model.0.weight"], _views.View)
    address = second[0].weight.data_ptr()
    session.restore({"model": second, "optimizer": torch.optim.AdamW(second.parameters())})
    assert torch.equal(second[0].weight, first[0].weight)
    assert second[0].weight.data_ptr() == address
    contiguous = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16))
    session.restore({"model": contiguous}, strict=False)
    assert torch.equal(contiguous[0].weight, first[0].weight)


def watched(shape):
    """(a parameter, a weak reference to its memory)."""
    array = numpy.ones(shape, dtype=numpy.float32)
    return torch.nn.Parameter(torch.from_numpy(array)), weakref.ref(array)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_memory_that_is_replaced_after_a_capture_is_gone(job, is_guarded):
    parameter, memory = watched((64, 64))
    model = torch.nn.Module()
    model.register_parameter("weight", parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job()
    if is_guarded:
        session.guard(optimizer)
    session.save(1, {"model": model}).captured.result(30)
    parameter.data = torch.zeros(1)  # As model.to() does.
    gc.collect()
    assert memory() is None


def test_a_tensor_that_was_prepared_for_is_not_kept(job):
    parameter, memory = watched((64, 64))
    session = job().guard(torch.optim.SGD([parameter], lr=0.1))
    session.prepare({"weight": parameter})
    parameter.data = torch.zeros(1)
    gc.collect()
    assert memory() is None
