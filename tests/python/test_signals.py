"""Goal: an exception of a signal's handler reaches the program, and the next save is as good.

Method: a state_dict() or a function of metrics raises the signal itself, so that the handler runs
within the save; and the call's own end is interrupted.
"""

import ast
import builtins
import functools
import os
import pathlib
import signal
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402
from libckpt import errors  # noqa: E402
from libckpt.core import _restore, _resuming, _turn  # noqa: E402
from libckpt.core.files import _publish_queue, _turns  # noqa: E402
from libckpt.dcp import _capturing  # noqa: E402


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
    items = {"w": torch.zeros(3)}
    before = sys.gettrace()
    interrupt_at("__exit__", "_turn.py")
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


def interrupt_at(name, file, count=1):
    """Raises KeyboardInterrupt as a function of that name begins for the count-th time."""
    seen = []

    def interrupt(frame, event, _):
        code = frame.f_code
        if (event, code.co_name) == ("call", name) and code.co_filename.endswith(file):
            seen.append(frame)
            if len(seen) == count:
                sys.settrace(None)
                raise KeyboardInterrupt

    sys.settrace(interrupt)


@pytest.mark.parametrize(("name", "count"), [("__enter__", 1), ("_replace", 4), ("__exit__", 1)])
def test_ctrl_c_at_the_ends_of_a_block_leaves_nothing_replaced(runtime, tmp_path, name, count):
    stock = (builtins.open, os.stat, os.rename, torch.save)
    before = sys.gettrace()
    interrupt_at(name, "_collector.py", count)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            libckpt.torch.checkpoint(tmp_path / "dir", step=1) as folder,
        ):
            (folder / "a").write_text("1")
    finally:
        sys.settrace(before)
    assert (builtins.open, os.stat, os.rename, torch.save) == stock
    with libckpt.torch.checkpoint(tmp_path / "dir", step=2) as folder:
        (folder / "a").write_text("2")
    libckpt.torch.wait()
    assert (tmp_path / "dir" / "a").read_text() == "2"
    for box in list(_publish_queue._queues):  # So that its daemon ends.
        box.close()
    libckpt.torch._queues.by_directory.clear()


class Interrupted:
    """A lock that has just been taken when Ctrl-C comes, once."""

    def __init__(self, lock):
        self._lock, self._is_due = lock, True

    def __getattr__(self, name):
        return getattr(self._lock, name)

    def acquire(self, **options):
        taken = self._lock.acquire(**options)
        if self._is_due:
            self._is_due = False
            raise KeyboardInterrupt
        return taken


def test_ctrl_c_as_a_save_takes_its_turn_makes_no_other_thread_wait(monkeypatch):
    lock = threading.RLock()
    monkeypatch.setattr(_turns, "_turn", Interrupted(lock))
    with pytest.raises(KeyboardInterrupt), _publish_queue.turn():
        pass
    with _publish_queue.turn(), _publish_queue.turn() as is_ours:  # Within one another.
        assert is_ours
    found = []
    other = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
    other.start()
    other.join()
    assert found == [True]


def interrupted(*_):
    signal.raise_signal(signal.SIGTERM)


class Odd:
    def __reduce__(self):
        interrupted()

    def __eq__(self, other):
        interrupted()

    __hash__ = object.__hash__


class Filled:
    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        interrupted()


def pickled(session):
    session.save(2, {"odd": Odd()})


def member(session):
    session.save(2, {"odd": libckpt.TorchMember(Odd())})


def filled(session):
    session.save(2, {"filled": Filled()}).captured.result(30)
    session.restore({"filled": Filled()})


def compared(session):
    session.save(2, {"pair": (1, 2)}).captured.result(30)
    session.restore({"pair": (Odd(), 2)}, strict=False)


def divided(session):
    _turn.tried(interrupted)


def from_memory(session):
    _resuming.from_memory(session, interrupted)


def chosen(session):
    session.save(2, {"w": torch.zeros(3)}).captured.result(30)
    _resuming.from_memory(session, lambda: session.restore({"w": torch.zeros(3)}))


def in_dcp(session):
    saving = object.__new__(_capturing.Capture)
    saving._job = types.SimpleNamespace(begin=interrupted)
    saving._session, saving._step = session, 2
    saving._has_asked, saving._may_raise, saving._ticket = True, False, object()
    saving.write(None, None)


@pytest.mark.parametrize(
    "run", [pickled, member, filled, compared, divided, from_memory, chosen, in_dcp]
)
def test_an_exception_of_a_handler_is_raised_wherever_it_comes(
    job, restored_handler, monkeypatch, run
):
    session = job(allow_pickle=True)
    if run is chosen:
        monkeypatch.setattr(_restore.Targets, "choose", interrupted)
    signal.signal(signal.SIGTERM, on_term)
    with pytest.raises(Preempted):
        run(session)


BROAD = {"Exception", "BaseException", None}
NOT_SWALLOWED = {  # Functions that keep the error in a broad `except`, and raise it later.
    "jax._restore._restore", "levanter._saver.save", "megatron._folders._write",
    "megatron._local_manager._restore", "megatron._memory._pieces_on_all_ranks",
    "core._resuming.from_memory", "dcp._capturing.write", "dcp._capturing.finish",
    # At the end of the program, or of the object, where Python itself drops it.
    "session.__del__",
}  # fmt: skip


def names_of(kind):
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return {None if each is None else ast.unparse(each) for each in kinds}


def passes_on(handler):
    """Whether an exception of a signal's handler leaves the `except`."""
    if isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None:
        return True
    return any(
        isinstance(node, ast.Attribute) and node.attr == "raise_of_handler"
        for node in ast.walk(handler)
    )


def broad_handlers(module, tree):
    """(function, whether it passes on) of each broad `except`."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and names_of(node.type) & BROAD:
                yield f"{module}.{function.name}", passes_on(node)


def test_no_broad_except_swallows_an_exception_of_a_handler():
    package, found = pathlib.Path(libckpt.__file__).parent, {}
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    for path, text in texts.items():
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        for function, is_passed_on in broad_handlers(module, ast.parse(text)):
            found[function] = found.get(function, True) and is_passed_on
    hidden = [path.name for path, text in texts.items() if "suppress(Exception)" in text]
    assert hidden == ["_open_sessions.py"]  # At the end of the program.
    assert len(found) > 30
    assert {function for function, is_passed_on in found.items() if not is_passed_on} == (
        NOT_SWALLOWED
    )
