"""Goal: a step of DeepSpeed from before the first save_checkpoint, which has no client_state
because attach was given none, is not resumed from in silence; where none is used, nothing is said.

Method: a Memory whose engine is a stand-in captures a step in a real session, and another one, as
of the next process, resumes from it as load_checkpoint does.
"""

import types

import pytest

pytest.importorskip("deepspeed")

from libckpt import errors  # noqa: E402
from libckpt.deepspeed import Attached, _memory  # noqa: E402


@pytest.fixture
def attached(runtime, monkeypatch):
    """Makes what attach makes of an engine, in a process of its own."""
    state = _memory._state.EngineState
    monkeypatch.setattr(state, "items", lambda _: {"value": 1})
    monkeypatch.setattr(state, "newest", lambda _, session, source=None: session.restore())
    monkeypatch.setattr(state, "give", lambda *_, **__: None)
    opened = []

    def make(client_state=None, folder=(None, None, ()), **options):
        for one in opened:
            one.memory.session.abandon()
        layout = types.SimpleNamespace(rank=0, ranks=1, arrays=list)
        one = Attached.__new__(Attached)
        engine = types.SimpleNamespace(global_steps=0)
        one.memory = _memory.Memory(engine, layout, "job", (client_state, None), options)
        one.folders = types.SimpleNamespace(newest=lambda _: folder)
        opened.append(one)
        return one

    yield make
    opened[-1].memory.session.abandon()


def captured(attached, step, has_saved=False, client_state=None):
    """As load_checkpoint, a step and perhaps a save_checkpoint before it."""
    assert attached._newer("folder") == (None, None)
    if has_saved:
        attached.memory.note_folder("folder", client_state or {})
    attached.memory._engine.global_steps = step
    attached.memory.capture()
    attached.memory.session.wait(step, "committed")


def warned(caplog):
    return [each for each in caplog.messages if "without a client_state" in each]


def test_a_step_from_before_the_first_save_that_has_no_client_state_says_so(attached, caplog):
    captured(attached(), 7)
    (_, client_state), failure = attached()._newer("folder")
    assert (client_state, failure) == ({}, None)
    (message,) = warned(caplog)
    assert "step 7 comes without a client_state" in message
    assert "libckpt.deepspeed.attach(client_state=...)" in message


@pytest.mark.parametrize("case", ["attach", "save", "folder", "empty"])
def test_where_it_is_known_what_a_save_is_given_nothing_is_said(attached, caplog, case):
    given = {"attach": lambda: {"step": 7}, "empty": dict}.get(case)
    captured(attached(given), 7, has_saved=case == "save")
    folder = (6, "global_step6", ()) if case == "folder" else (None, None, ())
    (_, client_state), failure = attached(given, folder)._newer("folder")
    assert failure is None
    assert client_state == ({"step": 7} if case == "attach" else {})
    assert warned(caplog) == []


def test_where_a_save_was_given_one_and_attach_was_not_memory_is_not_taken(attached, caplog):
    captured(attached(), 7, has_saved=True, client_state={"epoch": 1})
    assert attached()._newer("folder") == (None, None)
    assert "save_checkpoint was given a client_state (epoch)" in caplog.text


@pytest.mark.parametrize("call", ["save_checkpoint", "load_checkpoint"])
def test_the_directory_of_attach_is_no_folder_of_deepspeeds(attached, tmp_path, call):
    """However it is spelled. Another one is taken."""
    one = attached(dir=str(tmp_path / "same"))
    (tmp_path / "link").symlink_to(tmp_path / "same")
    called = []
    for given in (tmp_path / "same", tmp_path / "x" / ".." / "same", tmp_path / "link"):
        with pytest.raises(errors.InvalidArgument, match=f"{call}: .* is the dir of attach"):
            getattr(one, f"_{call}")(called.append, str(given))
    assert not called and not list(tmp_path.glob("same/latest"))
    one.memory.check_folder(call, tmp_path / "same" / "below")
    one.memory.session.dir = None
    one.memory.check_folder(call, tmp_path / "same")
