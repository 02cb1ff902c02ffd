"""Goal: the adapter of the guide works as it is printed there.

Method: its code is taken out of the guide and run. Two ranks in one process save through it; then
as many, fewer or more go on from the daemon's memory, or from storage.
"""

import pathlib
import re
import subprocess

import numpy
import pytest
from test_arrays import at_once

import libckpt

GUIDE = pathlib.Path(__file__).parents[2] / "libckpt" / "docs" / "guide" / "adapters.md"


def run(block, names):
    """A block of the guide's code."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    exec(compile(blocks[block], str(GUIDE), "exec"), names)
    return names


@pytest.fixture
def guide():
    return run(0, {})


@pytest.fixture
def ranks(guide, runtime, tmp_path):
    """Opens (framework, adapter) of each rank; what is still open dies at the end."""
    opened = []

    storing = {"dir": str(tmp_path / "checkpoints"), "save_storage_interval": 1}

    def open_ranks(count, is_stored=True):
        for rank in range(count):
            framework = guide["Framework"](rank, count)
            options = storing if is_stored else {}
            adapter = guide["Adapter"](framework, "toy", raise_on_error=True, **options)
            opened.append((framework, adapter))
        return opened[-count:]

    yield open_ranks
    for _, adapter in opened:
        adapter._session.abandon()


def whole(name, shape):
    """The result of the training: each element has its own number."""
    begin = 1000 if name.startswith("momentum") else 0
    return (begin + numpy.arange(numpy.prod(shape), dtype=numpy.float32)).reshape(shape)


def parts(guide, framework):
    """(what the rank has, what it is to be) of all its tensors."""
    for name, shape in framework.SHAPES.items():
        begin, end = guide["divided"](shape[0], framework.rank, framework.ranks)
        yield framework.rows[name], whole(name, shape)[begin:end]
        begin, end = guide["divided"](shape[0] * shape[1], framework.rank, framework.ranks)
        yield framework.momentum[name], whole("momentum", shape).reshape(-1)[begin:end]


def train(guide, pair, step, end="durable"):
    framework, adapter = pair
    framework.epoch = step
    for own, expected in parts(guide, framework):
        own[...] = expected
    adapter.save(step)
    adapter._session.wait(step, end)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_ranks_goes_on_from_the_memory_of_two(guide, ranks, count):
    save(guide, ranks(2, is_stored=False), "committed")
    go_on(guide, ranks(count, is_stored=False), "committed")


# More ranks of another number agree through torch or jax, as the guide says.
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_ranks_go_on_from_what_two_stored(guide, ranks, programs, count):
    save(guide, ranks(2), "durable")
    subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                   capture_output=True)  # fmt: skip
    go_on(guide, ranks(count), "durable")


def save(guide, pairs, end):
    assert at_once(pairs, lambda _, pair: pair[1].restore()) == [0] * len(pairs)
    at_once(pairs, lambda _, pair: train(guide, pair, 3, end))
    for _, adapter in pairs:
        adapter._session.abandon()


def go_on(guide, pairs, end):
    assert at_once(pairs, lambda _, pair: pair[1].restore()) == [3] * len(pairs)
    for framework, _ in pairs:
        assert framework.epoch == 3
        for own, expected in parts(guide, framework):
            assert own.size > 0
            assert numpy.array_equal(own, expected)
    at_once(pairs, lambda _, pair: train(guide, pair, 4, end))


def test_a_restore_makes_the_arrays_of_the_guide(guide, ranks, tmp_path):
    first = ranks(2)
    at_once(first, lambda _, pair: pair[1].restore())
    at_once(first, lambda _, pair: train(guide, pair, 3))
    made = run(1, {"libckpt": libckpt, "path": str(tmp_path / "checkpoints")})
    expected = whole("first", guide["Framework"].SHAPES["first"])
    assert numpy.array_equal(numpy.asarray(made["weights"]), expected)
    assert numpy.array_equal(numpy.asarray(made["rows"]), expected[4:7])
