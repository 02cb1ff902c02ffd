"""Goal: a training whose saves fail in Python learns of it at its end, and a restart says what it
lost.

Method: state that cannot be collected, from the first save on, from a later one on, and after a
restore that was refused; the session is closed, or let go as by a death and opened again.
"""

import logging

import pytest

import libckpt
from libckpt.core import _between

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
    warned = "step known to be saved is 1, on storage; 2 steps that were due after it"
    assert warned in capfd.readouterr().err


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


def test_items_may_be_a_function_that_is_called_if_the_step_is_due(job):
    session, calls = job(save_mem_interval=2), []

    def items():
        calls.append(session.counts()["captured"])  # Calls that ask nobody are allowed.
        return {"x": torch.ones(2)}

    def arrays():
        calls.append("arrays")
        return ()

    assert session.save_checkpoint_if_needed(1, items, arrays=arrays).outcome == "not_due"
    assert calls == []
    assert session.save_checkpoint_if_needed(2, items, arrays=arrays)
    assert calls == [None, "arrays"]
    session.wait(2, "committed")
    assert session.restore().items["x"].tolist() == [1, 1]


def test_several_ranks_call_the_function_for_each_step_where_the_interval_is_a_time(held_up):
    """One of them may find a step due that another does not, and the function may be a
    collective."""
    calls = []
    held_up._between._steps = None
    for step in (3, 4):
        held_up.save_checkpoint_if_needed(step, lambda: calls.append(1) or {"a": 1})
    assert calls == [1, 1]


@pytest.mark.parametrize("interval", ["100", " 100 ", "never"])
@pytest.mark.parametrize("place", ["code", "environment", "file"])
def test_several_ranks_call_no_function_between_the_steps_of_an_interval_in_steps(
    job, tmp_path, monkeypatch, interval, place
):
    options, calls = {}, []
    if place == "code":
        options = {"save_mem_interval": interval}
    elif place == "environment":
        monkeypatch.setenv("LIBCKPT_SAVE_MEM_INTERVAL", interval)
    else:
        (tmp_path / "conf").write_text(f"save_mem_interval = {interval}\n")
        monkeypatch.setenv("LIBCKPT_CONFIG", str(tmp_path / "conf"))
    session = job(rank=0, world_size=2, **options)
    for step in (1, 2, 3):
        ticket = session.save_checkpoint_if_needed(step, lambda: calls.append(1) or {"a": 1})
        assert ticket.outcome == "not_due"
    assert calls == []


@pytest.mark.parametrize(
    "options, divides",
    [({}, False), ({"save_mem_interval": 7}, False), ({"save_mem_interval": "60s"}, True),
     ({"save_mem_interval": "60s", "disable": True}, False)],
)  # fmt: skip
def test_only_by_a_time_may_ranks_find_different_steps_due(monkeypatch, options, divides):
    monkeypatch.delenv("LIBCKPT_SAVE_MEM_INTERVAL", raising=False)
    assert _between.Between(options, None, None).may_divide_ranks == divides


def test_degraded_says_that_saves_fail_until_one_succeeds(job):
    session, state = job(raise_on_error=False), Breaking()
    train(session, state, [1])
    assert session.counts()["degraded"] == ""
    state.is_broken = True
    train(session, state, [2, 3])
    assert session.counts()["degraded"] == "saves fail: no more state"
    assert session.status()["degraded"] == "saves fail: no more state"
    state.is_broken = False
    assert session.save(4, {"state": state}, wait=60)
    assert session.counts()["degraded"] == ""
    assert session.counts()["last_error"] == "no more state"


def test_restore_or_takes_a_step_by_its_number(job, caplog):
    session = job("run", raise_on_error=False)
    for step in (1, 2):
        session.save(step, {"x": torch.full((2,), float(step))}, wait=60)
        session.wait(step, "committed")
    session.abandon()
    x, session = torch.zeros(2), job("run", raise_on_error=False)
    assert session.restore_or({"x": x}, default=0, step=9) == 0
    assert "nothing is restored: " in caplog.text and "step 9" in caplog.text
    assert session.save(10, {"x": x}).outcome == "failed"  # There are others.
    assert session.restore_or({"x": x}, default=0, step=2) == 2
    assert x.tolist() == [2, 2]
