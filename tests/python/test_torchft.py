"""Goal: a replica group of torchft gets the very state of another one, however it comes.

Method: torchft's own test of a transport; then two transports with a daemon each, as on two
machines, whose bytes, kinds and leftovers are looked at; and what libckpt cannot bring, which
torchft's HTTPTransport has to. The killed group of examples/torchft_trainer.py is in
test_examples.py.
"""

import fractions
import json
import logging
import os
import subprocess
import unittest
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from torchft.checkpointing import HTTPTransport  # noqa: E402
from torchft.checkpointing.transport_test import run_multi_recovery_test  # noqa: E402
from trainers import ports  # noqa: E402

import libckpt.torchft  # noqa: E402
from libckpt.adapters.torch import _asks  # noqa: E402
from libckpt.core import _transfer  # noqa: E402

ENOUGH = timedelta(seconds=60)


def state():
    return {
        "user": {"default": {
            "model": {"weight": torch.arange(100_000.0).reshape(100, 1000),
                      "half": torch.ones(7, dtype=torch.bfloat16), "none": torch.empty(0)},
            "optimizer": {"state": {0: {"step": torch.tensor(3.0)}},
                          "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}]},
        }},
        "torchft": {"step": 7, "batches_committed": 14},
    }  # fmt: skip


def flat(value, path=""):
    """Tensors as their types, shapes and bytes; with the kinds of containers."""
    if isinstance(value, torch.Tensor):
        return {path: (value.dtype, value.shape, value.view(-1).view(torch.uint8).tolist())}
    parts = {}
    if isinstance(value, (dict, list, tuple)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        parts[path] = type(value)
        for key, part in pairs:
            parts |= flat(part, f"{path}/{key!r}")
        return parts
    return {path: value}


@pytest.fixture
def ckpt(programs):
    def run(*arguments):
        return subprocess.run([programs / "ckpt", *arguments], capture_output=True, text=True,
                              timeout=60, check=False).stdout  # fmt: skip

    return run


@pytest.fixture
def two_nodes(tmp_path, runtime, ckpt):
    """Transports of two nodes, and their runtime directories."""
    directories = [tmp_path / name for name in "ab"]
    transports = []
    reserved = [ports.reserve() for _ in directories]
    for directory, port in zip(directories, reserved, strict=True):
        transports.append(libckpt.torchft.Transport(
            "heal", node=directory.name, interface="127.0.0.1",
            port=port.getsockname()[1], runtime_dir=str(directory),
        ))  # fmt: skip
    yield transports, directories
    for transport, directory in zip(transports, directories, strict=True):
        transport.shutdown()
        ckpt("stop", "--no-flush", "--runtime-dir", directory)
    for port in reserved:
        port.close()


@pytest.fixture
def pair(runtime):
    transports = [libckpt.torchft.Transport("heal") for _ in range(2)]
    yield transports
    for transport in transports:
        transport.shutdown()


def bring(sender, receiver, step=7, given=None, timeout=ENOUGH):
    sender.send_checkpoint([1], step, state() if given is None else given, ENOUGH)
    return receiver.recv_checkpoint(0, sender.metadata(), step, timeout)


def is_by_stock(caplog):
    return any("fetching checkpoint from" in record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def logged(caplog):
    caplog.set_level(logging.INFO)


def test_torchfts_own_test_of_a_transport_passes(runtime, caplog):
    made = []

    def make(rank, world_size):
        made.append(libckpt.torchft.Transport("heal"))
        return made[-1]

    run_multi_recovery_test(unittest.TestCase(), make, torch.device("cpu"))
    assert len(made) == 3
    assert not is_by_stock(caplog)  # The distributed tensor came by memory, too.


def test_a_state_goes_from_daemon_to_daemon_and_leaves_nothing(two_nodes, ckpt, caplog):
    (sender, receiver), directories = two_nodes
    for step in (7, 8):
        assert flat(bring(sender, receiver, step)) == flat(state())
        sender.disallow_checkpoint()
    assert not is_by_stock(caplog)
    sender.shutdown()
    for directory in directories:
        told = json.loads(ckpt("status", "--json", "--runtime-dir", directory))
        assert told["jobs"] == []
        assert told["memory"]["used_bytes"] == 0
        assert not list(directory.glob("secret-*"))


def test_two_groups_that_heal_at_once_both_get_it(pair, caplog):
    sender, receiver = pair
    sender.send_checkpoint([1, 2], 7, state(), ENOUGH)
    for _ in range(2):
        assert flat(receiver.recv_checkpoint(0, sender.metadata(), 7, ENOUGH)) == flat(state())
    assert not is_by_stock(caplog)


def test_the_state_may_change_once_it_is_disallowed(pair):
    sender, receiver = pair
    given = state()
    weight = given["user"]["default"]["model"]["weight"]
    sender.send_checkpoint([1], 7, given, ENOUGH)
    capture = sender._sender.send

    def then_disallowed(*arguments):
        is_on_its_way = capture(*arguments)
        weight.zero_()  # As a step would, after disallow_checkpoint: that waits for this call.
        return is_on_its_way

    sender._sender.send = then_disallowed
    assert flat(receiver.recv_checkpoint(0, sender.metadata(), 7, ENOUGH)) == flat(state())
    sender.disallow_checkpoint()
    assert not weight.any()


def test_nobody_asks_and_disallow_does_not_wait(pair):
    sender, receiver = pair
    sender.send_checkpoint([1], 7, state(), timedelta(hours=1))
    sender.disallow_checkpoint()  # Would take an hour.
    with pytest.raises(libckpt.errors.Unavailable, match="timed out after 0.2 s"):
        receiver.recv_checkpoint(0, sender.metadata(), 7, timedelta(seconds=0.2))
    # The ask that is left there is of an attempt that is over.
    assert flat(bring(sender, receiver)) == flat(state())


def test_what_only_a_pickle_holds_goes_by_torchft(pair, caplog):
    sender, receiver = pair
    given = state() | {"odd": fractions.Fraction(1, 3)}
    assert bring(sender, receiver, given=given)["odd"] == fractions.Fraction(1, 3)
    assert is_by_stock(caplog)
    assert "torchft's HTTPTransport sends it" in caplog.text


@pytest.mark.parametrize("place", ["no", "file/no"])
def test_a_receiver_without_a_daemon_gets_it_by_torchft_at_once(runtime, tmp_path, caplog, place):
    (tmp_path / "file").touch()
    sender = libckpt.torchft.Transport("heal")
    broken = libckpt.torchft.Transport("heal", runtime_dir=str(tmp_path / place), node="other",
                                       daemon_path="/bin/false")  # fmt: skip
    for _ in range(2):
        assert flat(bring(sender, broken)) == flat(state())
        assert is_by_stock(caplog)
        sender.disallow_checkpoint()
    (told,) = [text for text in caplog.messages if "torchft's HTTPTransport brings it" in text]
    assert "start the daemon" in told or "Not a directory" in told
    assert caplog.text.count("it cannot take part") == 1  # The second time it does not try.
    broken.shutdown()
    sender.shutdown()


def test_a_failure_of_the_sender_in_mid_transfer_leaves_the_next_to_torchft(
    pair, monkeypatch, caplog
):
    sender, receiver = pair

    def fail(self, step, words):  # The state may have changed by now.
        self._session.abandon()
        words.say(self._ask["id"], "end", failed="as a test wants it")

    with monkeypatch.context() as patch:
        patch.setattr(_transfer.Sending, "finish", fail)
        with pytest.raises(libckpt.errors.Unavailable, match="as a test wants it"):
            bring(sender, receiver)
        assert not is_by_stock(caplog)
    sender.disallow_checkpoint()
    assert flat(bring(sender, receiver)) == flat(state())
    assert is_by_stock(caplog)


def test_a_daemon_that_listens_a_moment_later_is_waited_for(monkeypatch):
    looked = iter([True, True, False])
    monkeypatch.setattr(_transfer, "_is_free", lambda host, port: next(looked))
    _transfer._check_listens(["a@127.0.0.1:1", "b@[::1]:2"], 1)
    assert list(looked) == []


def test_a_daemon_that_listens_elsewhere_leaves_it_to_torchft_at_once(two_nodes, caplog):
    (sender, receiver), directories = two_nodes
    assert flat(bring(sender, receiver, 6)) == flat(state())
    sender.disallow_checkpoint()
    assert not is_by_stock(caplog)
    with ports.reserve() as free:  # The daemon that runs listens elsewhere.
        moved = libckpt.torchft.Transport("heal", node="b", interface="127.0.0.1",
                                          port=free.getsockname()[1],
                                          runtime_dir=str(directories[1]))  # fmt: skip
        assert flat(bring(sender, moved, 7)) == flat(state())
        moved.shutdown()
    assert is_by_stock(caplog)
    assert "the daemon of this node is not at 127.0.0.1:" in caplog.text


@pytest.mark.parametrize("disabled", ["both", "sender", "receiver"])
def test_disabled_it_is_torchfts_own(runtime, disabled, monkeypatch):
    made = {}
    for name in ("sender", "receiver"):
        with monkeypatch.context() as environment:
            if disabled in (name, "both"):
                environment.setenv("LIBCKPT_DISABLE", "1")
            made[name] = libckpt.torchft.Transport("heal")
    is_stock = made["sender"].metadata().startswith("http://")
    assert is_stock == (disabled != "receiver")
    assert flat(bring(made["sender"], made["receiver"])) == flat(state())
    assert not (runtime / "ckptd.sock").exists()
    for transport in made.values():
        transport.shutdown()


def test_stock_torchft_gets_it_from_a_disabled_transport(runtime, monkeypatch):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    sender, receiver = libckpt.torchft.Transport("heal"), HTTPTransport(ENOUGH, 0)
    assert flat(bring(sender, receiver)) == flat(state())
    sender.shutdown()
    receiver.shutdown()


def test_a_directory_from_the_environment_is_refused_in_words(runtime, monkeypatch, caplog):
    monkeypatch.setenv("LIBCKPT_DIR", os.fspath(runtime))
    transport = libckpt.torchft.Transport("heal")
    assert "LIBCKPT_DIR" in caplog.text
    assert flat(bring(transport, transport)) == flat(state())
    transport.shutdown()


def test_an_ask_of_an_attempt_that_is_over_is_passed_by(pair):
    sender, receiver = pair
    other = _asks.Store("localhost", sender._asks.port, _asks.Deadline(10))
    for step, is_done in ((6, False), (7, True)):
        name = other.ask(step=step, node="n", port=1, address="127.0.0.1", wants_stock=True)
        if is_done:
            other.say(name, "done")
    assert flat(bring(sender, receiver)) == flat(state())
    sender.disallow_checkpoint()
    assert not other.is_said(name, "job")
