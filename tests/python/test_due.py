"""Goal: a step that is not due costs next to nothing, whatever its interval is made of.

Method: an item counts how often a save asks for its state; steps are saved by count and by time,
with the interval given by the code, the environment and the file.
"""

import pytest

torch = pytest.importorskip("torch")

SECONDS = 60
LATER = "1h"  # Later than any test.


class Counted:
    """An item that counts how often it was looked at."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        self.count += 1
        return {"w": torch.ones(3)}

    def load_state_dict(self, state):
        pass


def outcomes(session, item, steps):
    return [session.save_checkpoint_if_needed(step, {"item": item}).outcome for step in steps]


@pytest.fixture(params=["code", "environment", "file"])
def by_interval(request, job, tmp_path, monkeypatch):
    """Opens a session with that interval, set in one of three ways."""

    def open_session(interval):
        if request.param == "code":
            return job(save_mem_interval=interval)
        if request.param == "environment":
            monkeypatch.setenv("LIBCKPT_SAVE_MEM_INTERVAL", str(interval))
        else:
            (tmp_path / "conf").write_text(f"save_mem_interval = {interval}\n")
            monkeypatch.setenv("LIBCKPT_CONFIG", str(tmp_path / "conf"))
        return job()

    return open_session


def test_by_time_only_the_steps_that_are_due_are_looked_at(by_interval):
    session, item = by_interval(LATER), Counted()
    assert outcomes(session, item, range(1, 101)) == ["started"] + ["not_due"] * 99
    assert item.count == 1


def test_by_count_only_the_steps_that_are_due_are_looked_at(by_interval):
    session, item = by_interval(50), Counted()
    made = outcomes(session, item, range(1, 100))
    assert made == ["not_due"] * 49 + ["started"] + ["not_due"] * 49
    assert item.count == 1


def test_a_step_that_was_not_due_may_be_saved_all_the_same(job):
    session, item = job(save_mem_interval=LATER), Counted()
    session.save(1, {"item": item}).committed.result(SECONDS)
    assert outcomes(session, item, [2]) == ["not_due"]
    session.save(2, {"item": item}).captured.result(SECONDS)
    assert item.count == 2


def test_by_time_training_that_got_on_confirms_the_step_that_it_began_with(job):
    session, item = job(save_mem_interval=LATER), Counted()
    session.save(1, {"item": item}).committed.result(SECONDS)
    assert session.restore({"item": item}).step == 1
    assert session._must_confirm == 1
    outcomes(session, item, range(2, 5))
    assert session._must_confirm is None


def test_a_closed_session_refuses_a_step_whether_due_or_not(job):
    import libckpt

    session, item = job(save_mem_interval=LATER), Counted()
    session.save(1, {"item": item})
    session.close()
    with pytest.raises(libckpt.InvalidArgument, match="was closed"):
        session.save_checkpoint_if_needed(2, {"item": item})
