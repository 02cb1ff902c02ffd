"""Goal: a tree that was saved is held no longer than its copy takes, due or not.

Method: a stand-in for the session says that a save has ended, and notes when it is let go.
"""

import types
import unittest.mock

import pytest

jax = pytest.importorskip("jax")

import libckpt.jax  # noqa: E402


@pytest.mark.parametrize("name", ["save", "save_checkpoint_if_needed"])
def test_a_save_that_has_ended_is_let_go_at_the_next_step_which_is_not_due(monkeypatch, name):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    checkpointer = libckpt.jax.Checkpointer("job")
    session = checkpointer.session = unittest.mock.MagicMock()
    done = types.SimpleNamespace(done=lambda: True)
    for call in (session.save, session.save_checkpoint_if_needed):
        call.return_value.captured = done
    getattr(checkpointer, name)(10, {"x": 1})
    session.finish_capture.assert_not_called()
    session.save_checkpoint_if_needed.return_value = None  # It is not due.
    checkpointer.save_checkpoint_if_needed(11, {"x": 1})
    checkpointer.save_checkpoint_if_needed(12, {"x": 1})
    session.finish_capture.assert_called_once()
