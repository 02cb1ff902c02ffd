"""Goal: a training whose saves fail in Python learns of it at its end, and a restart says what it
lost.

Method: state that cannot be collected, from the first save on, from a later one on, and after a
restore that was refused; the session is closed, or let go as by a death and opened again.
"""

import logging

import pytest

import libckpt

torch = pytest.importorskip("torch")


class Breaking:
    """State that can be saved until it is broken."""

    def __init__(self):
        self.is_broken = False

    def state_dict(self):
        if self.is_broken:
            raise RuntimeError("no more state")
        return {"weight": torch.zeros(8)}

    def load_state_dict(self, state):
        pass


def train(session, state, steps):
    return [session.save_checkpoint_if_needed(step, {"state": state}).outcome for step in steps]


def test_a_training_of_which_nothing_was_saved_is_no_success(job, tmp_path):
    session, state = job(dir=tmp_path / "run", raise_on_error=False), Breaking()
    state.is_broken = True
    assert train(session, state, range(1, 4)) == ["failed"] * 3
    assert session.counts()["failed"] == 3
    with pytest.raises(libckpt.NotFound, match="3 steps were due, none .*no more state"):
        session.close()


def test_a_training_of_which_the_end_was_not_saved_is_warned_of(job, tmp_path, capfd):
    session, state = job(dir=tmp_path / "run", raise_on_error=False), Breaking()
    assert train(session, state, [1]) == ["started"]
    session.wait(1, "committed")
    state.is_broken = True
    assert train(session, state, [2, 3]) == ["failed"] * 2
    with pytest.raises(libckpt.NotFound, match="its save failed: no more state"):
        session.wait(3, "captured", 60)
    session.close()
    assert "step known to be saved is 1; 2 steps that were due after it" in capfd.readouterr().err


def test_a_training_after_a_restore_that_was_refused_is_no_success(job, tmp_path):
    with job("run", dir=tmp_path / "run", raise_on_error=False) as session:
        session.save(1, {"model": torch.zeros(8)}).durable.result(30)
    session = job("run", dir=tmp_path / "run", raise_on_error=False)
    with pytest.raises(libckpt.InvalidArgument):
        session.restore({"model": torch.zeros(9)})
    for step in range(1, 4):
        assert session.save(step, {"model": torch.zeros(9)}).outcome == "failed"
    with pytest.raises(libckpt.NotFound, match="3 steps were due, none .*start_fresh"):
        session.close()


def test_a_restart_counts_the_steps_whose_saves_had_failed(job, caplog):
    session, state = job("run", raise_on_error=False), Breaking()
    assert train(session, state, [1]) == ["started"]
    session.wait(1, "committed")
    state.is_broken = True
    train(session, state, range(2, 6))
    session.counts()  # Behind what was sent before it.
    assert session.status()["daemon"] is not None
    session.abandon()
    with caplog.at_level(logging.INFO, logger="libckpt"):
        restored = job("run").restore({"state": Breaking()})
    assert restored.step == 1
    assert restored.newest_seen >= 2
