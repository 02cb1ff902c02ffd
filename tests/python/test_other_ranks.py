"""Goal: another number of ranks restores what this one would: no abandoned step comes back, and
damage costs one step and not the job.

Method: two ranks in one process publish steps; then one rank restores from the directory, after a
rollback and after bytes were flipped. Ranks that run for real are in test_ranks.py.
"""

import json
import logging
import subprocess

import pytest
from test_arrays import at_once

import libckpt

torch = pytest.importorskip("torch")

ROWS = 1000


def state(step=0):
    return {"weights": torch.full((ROWS,), float(step)), "done": {"step": step}}


def of_all(sessions, call):
    """Each session's answer, or its error, asked at the same time."""

    def ask(_, session):
        try:
            return call(session)
        except libckpt.CheckpointError as error:
            return error

    return at_once(sessions, ask)


class Job:
    """A job with a directory, that runs as any number of ranks, one after the other."""

    def __init__(self, job, directory, runtime, programs):
        self._job, self.directory, self._programs = job, directory, programs

    def open(self, count):
        return [self._job(dir=self.directory, save_storage_interval=1, rank=rank, world_size=count)
                for rank in range(count)]  # fmt: skip

    def publish(self, sessions, *steps, **more):
        for step in steps:
            items = state(step) | more
            of_all(sessions, lambda session, step=step: session.save(step, items))
            of_all(sessions, lambda session, step=step: session.wait(step, "durable"))

    def forget(self, sessions):
        """All ranks end, and what was in memory is gone."""
        for session in sessions:
            session.abandon()
        subprocess.run([self._programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                       capture_output=True)  # fmt: skip

    def restore(self, count, **options):
        """(step, values) as all ranks have it."""
        sessions = self.open(count)
        items = [state() for _ in sessions]
        by_session = dict(zip(sessions, items, strict=True))
        answers = of_all(sessions, lambda one: one.restore(by_session[one], **options))
        self.forget(sessions)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        assert len({answer.step for answer in answers}) == 1
        assert [answer.items_of for answer in answers] == list(range(count))
        for item in items:
            assert torch.equal(item["weights"], state(answers[0].step)["weights"])
            assert item["done"] == {"step": answers[0].step}
        return answers[0].step

    def listed(self):
        done = subprocess.run([self._programs / "ckpt", "ls", "--json", self.directory], text=True,
                              timeout=60, capture_output=True, check=False)  # fmt: skip
        return json.loads(done.stdout)

    def flip(self, step, name, at):
        path = self.directory / f"step-{step:09}" / name
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)


@pytest.fixture
def other(job, tmp_path, runtime, programs):
    return Job(job, tmp_path / "dir", runtime, programs)


@pytest.fixture
def published(other):
    """Steps 10, 15 and 20, of two ranks."""
    sessions = other.open(2)
    other.publish(sessions, 10, 15, 20)
    other.forget(sessions)
    return other


def roll_back(other, step):
    sessions = other.open(2)
    restored = of_all(sessions, lambda session: session.restore(state(), step=step))
    assert [answer.step for answer in restored] == [step, step]
    return sessions


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_that_was_abandoned_does_not_come_back(published, count):
    published.forget(roll_back(published, 10))
    assert published.restore(count) == 10
    listed = published.listed()
    assert listed["newest"] == "step-000000010"
    told = {each["step"]: each["abandoned"] for each in listed["checkpoints"]}
    assert told == {10: False, 15: True, 20: True}


def test_an_abandoned_step_that_is_asked_for_is_called_that(published):
    published.forget(roll_back(published, 10))
    with pytest.raises(libckpt.Unsupported, match="step 20 was abandoned by a restore to an older"):
        published.restore(1, step=20)


def test_a_step_that_is_named_leaves_the_newer_ones_until_one_is_published(published, caplog):
    assert published.restore(1, step=10) == 10
    assert "step 20, which is newer, is abandoned only when" in caplog.text
    sessions = published.open(1)
    assert sessions[0].restore(state(), step=10).step == 10
    published.publish(sessions, 12)
    published.forget(sessions)
    assert published.restore(1) == 12


def test_a_step_that_was_published_after_a_rollback_is_restored(published):
    sessions = roll_back(published, 10)
    published.publish(sessions, 12)
    published.forget(sessions)
    assert published.restore(1) == 12


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "file", ["rank-00000.safetensors", "rank-00001.safetensors", "rank-00001.part"]
)
def test_a_damaged_shard_costs_one_step(published, caplog, file, count):
    published.flip(20, file, -1)
    with caplog.at_level(logging.WARNING, "libckpt"):
        assert published.restore(count) == 15
    if count == 1:
        assert "step 20 is passed over" in caplog.text
        assert file in caplog.text


def test_a_damaged_manifest_costs_one_step_and_is_named(published, caplog):
    published.flip(20, "manifest.json", 40)
    assert published.restore(1) == 15
    assert "step-000000020" in caplog.text
    assert published.restore(1, step=10) == 10


def test_tensors_that_a_damaged_step_has_overwritten_are_not_trained_on(other):
    sessions = other.open(2)
    other.publish(sessions, 15)
    other.publish(sessions, 20, extra=torch.ones(5))
    other.forget(sessions)
    other.flip(20, "rank-00001.safetensors", -1)  # Read behind what the first rank had.
    session = other.open(1)[0]
    items = state() | {"extra": torch.zeros(5)}
    with pytest.raises(libckpt.StorageError, match="step 15: it lacks extra, which a newer one"):
        session.restore(items, strict=False)
    with pytest.raises(libckpt.InvalidArgument, match="the restore before it failed"):
        session.save(21, items)


def test_where_all_is_damaged_nobody_begins_anew(published):
    for step in (10, 15, 20):
        published.flip(step, "rank-00000.safetensors", -1)
    with pytest.raises(libckpt.Corruption, match="no checkpoint is whole: step 20 .*step 10 "):
        published.restore(1)
    with pytest.raises(libckpt.Corruption, match="step 15 "):
        published.restore(1, step=15)


def test_without_the_history_only_a_step_that_is_named_is_restored(published):
    published.forget(roll_back(published, 10))
    path = published.directory / ".libckpt" / "timelines.json"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(libckpt.Corruption, match="history.*is lost.*restore a step by its number"):
        published.restore(1)
    path.write_bytes(content)  # As its writer would.
    assert published.restore(1, step=10) == 10
