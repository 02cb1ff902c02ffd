"""Goal: an exception of a signal's handler reaches the program, and the next save is as good.

Method: a state_dict() or a function of metrics raises the signal itself, so that the handler runs
within the save; and the call's own end is interrupted.
"""

import functools
import signal
import sys

import pytest

torch = pytest.importorskip("torch")

from libckpt import errors  # noqa: E402


class Preempted(Exception):
    pass


def on_term(*_):
    raise Preempted("SIGTERM")


class Handler:
    def __call__(self, *_):
        raise Preempted("SIGTERM")

    def method(self, *_):
        raise Preempted("SIGTERM")


class State:
    def state_dict(self):
        signal.raise_signal(signal.SIGTERM)
        return {}

    def load_state_dict(self, state):
        pass


HANDLERS = [on_term, Handler(), Handler().method, functools.partial(on_term, 1)]


@pytest.fixture
def restored_handler():
    stock = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, stock)


def test_an_exception_of_a_handler_is_raised_from_a_save(job, restored_handler):
    session = job(raise_on_error=False)
    good = {"w": torch.zeros(3)}
    for number, handler in enumerate(HANDLERS):
        signal.signal(signal.SIGTERM, handler)
        with pytest.raises(Preempted):
            session.save(4 * number + 1, {"state": State()})
        with pytest.raises(Preempted):
            session.save(
                4 * number + 2, good, metrics=lambda: signal.raise_signal(signal.SIGTERM), wait=20
            )
        assert session.save(4 * number + 3, good, wait=20)
    signal.signal(signal.SIGTERM, lambda *_: None)
    assert session.save(100, {"state": State(), **good}, wait=20)


def test_a_failure_of_the_programs_own_is_still_swallowed(job, restored_handler):
    signal.signal(signal.SIGTERM, on_term)
    session = job(raise_on_error=False)

    def items():
        raise Preempted("not by the handler")

    assert session.save(1, items).outcome == "failed"
    assert "not by the handler" in session.counts()["last_error"]


def test_a_save_that_fails_after_the_library_was_asked_is_logged(job, monkeypatch, caplog):
    session = job(raise_on_error=False)
    registration = session._tensors

    class Client:
        def save(self, *_):
            raise RuntimeError("not the library's")

        def __getattr__(self, name):
            return getattr(session._client, name)

    monkeypatch.setattr(registration, "client", Client())
    assert session.save(1, {"w": torch.zeros(3)}).outcome == "failed"
    assert "not the library's" in caplog.text


def test_ctrl_c_at_the_end_of_a_call_refuses_no_later_one(job):
    session = job()

    def interrupt(frame, event, _):
        code = frame.f_code
        if (event, code.co_name) == ("call", "__exit__") and code.co_filename.endswith("_turn.py"):
            sys.settrace(None)
            raise KeyboardInterrupt

    items = {"w": torch.zeros(3)}
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.save(1, items, wait=20)
    finally:
        sys.settrace(before)
    assert session.save(2, items, wait=20)
    with pytest.raises(errors.InvalidArgument, match="in the middle of another call"):
        session.save(3, lambda: session.save(4, items))
    assert session.save(5, items, wait=20)


def test_a_jobs_name_may_be_a_number(job):
    session = job(5)
    assert session.job == "5"
    assert session.save(1, {"w": torch.zeros(3)}, wait=20)
    with pytest.raises(errors.InvalidArgument, match="option job"):
        job(5.5)
