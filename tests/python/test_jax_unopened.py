"""Goal: without a daemon a JAX training starts, goes on and says once that nothing is captured; but
it does not begin anew over checkpoints that it cannot restore.

Method: a program of the daemon that is not there, before and after a life that stored a step.
"""

import os

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # Before JAX is used.
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import libckpt  # noqa: E402
import libckpt.jax  # noqa: E402
from libckpt import levanter  # noqa: E402
from libckpt.core import _ranks, _unopened  # noqa: E402
from libckpt.levanter import CheckpointInterval  # noqa: E402

UNCAPTURED = "training goes on, and steps are not captured in memory"


@pytest.fixture
def lose_daemon(runtime, monkeypatch):
    def lose():
        monkeypatch.setenv("LIBCKPT_DAEMON_PATH", "/nonexistent/ckptd")
        monkeypatch.setenv("LIBCKPT_RUNTIME_DIR", str(runtime.parent / "other"))

    return lose


def state_of(value):
    return {"weight": jnp.full((8,), float(value))}


def test_jax_goes_on_without_captures(lose_daemon, caplog, tmp_path):
    lose_daemon()
    with libckpt.jax.Checkpointer("job", dir=tmp_path / "dir") as checkpointer:
        start, state = checkpointer.restore_or(state_of(1))
        assert (start, float(state["weight"][0])) == (0, 1.0)
        checkpointer.prepare(state)
        for step in (1, 2, 3):
            assert not checkpointer.save_checkpoint_if_needed(step, state)
        with pytest.raises(libckpt.NotFound, match="nothing can be read from memory.*ckptd"):
            checkpointer.restore(state)
        with pytest.raises(libckpt.Unavailable, match="so step 7 cannot be restored"):
            checkpointer.restore(state, 7)
        assert checkpointer.latest is None
        checkpointer.wait_until_finished()
    assert caplog.text.count(UNCAPTURED) == 1
    assert caplog.text.count("training begins at step 0: job job: nothing can be read") == 1


@pytest.mark.parametrize("job", ["job", "another"])
def test_jax_does_not_begin_anew_over_what_is_stored(lose_daemon, tmp_path, job):
    with libckpt.jax.Checkpointer("job", dir=tmp_path) as checkpointer:
        checkpointer.restore_or(state_of(0))
        checkpointer.save(5, state_of(5), wait=60).committed.result()
    lose_daemon()
    with libckpt.jax.Checkpointer(job, dir=tmp_path) as checkpointer:
        if job == "another":  # The step is not of this training.
            assert checkpointer.restore_or(state_of(0))[0] == 0
            return
        with pytest.raises(libckpt.Unavailable, match="step 5 in .* cannot be restored"):
            checkpointer.restore_or(state_of(0))
    assert float(libckpt.jax.load(tmp_path, state_of(0))["weight"][0]) == 5.0


def test_wrong_options_and_raise_on_error_still_raise(lose_daemon):
    lose_daemon()
    with pytest.raises(libckpt.InvalidArgument):
        libckpt.jax.Checkpointer("job", save_mem_interval="bogus")
    with pytest.raises(libckpt.Unavailable, match="ckptd"):  # NotFound would mean a first start.
        libckpt.jax.Checkpointer("job", raise_on_error=True)


def test_one_rank_that_sees_a_step_holds_back_all(monkeypatch):
    """Ranks with directories of their own must not begin anew in part."""
    unopened = _unopened.Unopened.__new__(_unopened.Unopened)
    unopened.job, unopened.dir, unopened.error = "job", None, libckpt.NotFound("no daemon")
    unopened._ranks = _ranks.Ranks("job")
    assert isinstance(unopened.refusal(), libckpt.NotFound)
    monkeypatch.setattr(
        unopened._ranks, "decide", lambda what, value, rule: rule([value, "step 3 in there", value])
    )
    refusal = unopened.refusal()
    assert isinstance(refusal, libckpt.Unavailable)
    assert "so step 3 in there cannot be restored" in str(refusal)


def test_levanter_goes_on_without_folders_and_reads_those_that_are_there(
    lose_daemon, caplog, tmp_path
):
    def open_one():
        return levanter.Checkpointer(tmp_path / "base", None, [CheckpointInterval(2)])

    first = open_one()
    first.load_or(state_of(0))
    first.on_step(tree=state_of(2), step=2)
    first.wait_until_finished()
    first.abandon()
    lose_daemon()
    second = open_one()
    assert float(second.load_or(state_of(0))["weight"][0]) == 2.0
    for step in (3, 4, 5, 6):
        second.on_step(tree=state_of(step), step=step)
    second.wait_until_finished()
    second.close()
    assert caplog.text.count(UNCAPTURED) == 1
    assert caplog.text.count("no folders are saved below") == 1
    assert caplog.text.count("ERROR") == 2
    assert sorted(path.name for path in (tmp_path / "base").glob("step-*")) == ["step-2"]
