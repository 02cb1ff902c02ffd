"""Goal: Levanter's policies decide what is saved, and a temporary checkpoint goes only when a newer
one is complete; each resume takes the newest of memory and folders.

Method: a table of cases for which steps are saved and which of them are temporary; the clock is the
test's own. test_levanter_oracle.py asks Levanter itself.
"""

import datetime
import json
import os

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # Before JAX is used.
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from test_jax import Training, lose_memory  # noqa: E402

import libckpt  # noqa: E402
from libckpt import levanter  # noqa: E402
from libckpt.levanter import CheckpointInterval, _policy  # noqa: E402

SECOND = datetime.timedelta(seconds=1)
BEGIN = datetime.datetime(2026, 1, 1)


class Clock:
    def __init__(self):
        self.now = BEGIN

    def __call__(self):
        return self.now


def decided(interval, policies, steps, pace, forced=()):
    """By step, "permanent" or "temporary", where a step takes `pace` seconds."""
    clock = Clock()
    policy = _policy.Policy(interval and interval * SECOND, policies, clock)
    found = {}
    for step in steps:
        clock.now += pace * SECOND
        kind = policy.decide(step, step in forced)
        if kind is not None:
            found[step] = kind[0]
            policy.saved(step)
    return found


@pytest.mark.parametrize(
    ("interval", "policies", "pace", "forced", "expected"),
    [
        # `until` is inclusive, and the first interval whose `until` is not passed counts.
        (None, [(2, 4), (5, None)], 4, (), {2: "p", 4: "p", 5: "p", 10: "p"}),
        (None, [(2, 4), (3, 8)], 4, (), {2: "p", 4: "p", 6: "p"}),
        (None, [(4, None)], 4, (3,), {3: "p", 4: "p", 8: "p", 12: "p"}),
        (None, [], 4, (), {}),
        # By time since the last save of either kind; what is due by steps is permanent.
        (10, [], 4, (), {3: "t", 6: "t", 9: "t", 12: "t"}),
        (10, [(5, None)], 4, (), {3: "t", 5: "p", 8: "t", 10: "p"}),
        (8, [(5, 5)], 4, (), {2: "t", 4: "t", 5: "p", 7: "t", 9: "t", 11: "t"}),
        # Step 0 is never saved, unless that is forced; then for good.
        (1, [(1, None)], 4, (0,), dict.fromkeys(range(13), "p")),
        (1, [(1, 0)], 4, (), dict.fromkeys(range(1, 13), "t")),
    ],
)
def test_steps_are_saved_as_levanter_s_rules_say(interval, policies, pace, forced, expected):
    intervals = [CheckpointInterval(every, until) for every, until in policies]
    assert decided(interval, intervals, range(13), pace, forced) == expected


def test_a_step_is_saved_once_and_intervals_must_be_sorted():
    clock = Clock()
    policy = _policy.Policy(None, [CheckpointInterval(2)], clock)
    assert policy.decide(2, False) == "permanent"
    policy.saved(2)
    assert policy.decide(2, False) is None
    assert policy.decide(2, True) == "permanent"
    for policies in ([(2, None), (3, 5)], [(2, 5), (3, 5)], [(2, 5), (3, 4)]):
        with pytest.raises(ValueError, match="step_policies"):
            _policy.Policy(None, [CheckpointInterval(*each) for each in policies], clock)


# --- with folders


def mesh(*shape):
    devices = numpy.array(jax.devices()[: int(numpy.prod(shape))]).reshape(shape)
    return Mesh(devices, ("a", "b")[: len(shape)])


def state_of(step, on):
    rows = NamedSharding(on, PartitionSpec("a"))
    weights = jnp.arange(32, dtype=jnp.float32).reshape(8, 4) + step
    return {"model": {"w": jax.device_put(weights, rows)},
            "optimizer": jax.device_put(jnp.full(8, step, jnp.bfloat16), rows),
            "step": step}  # fmt: skip


def is_of(state, step):
    expected = state_of(step, mesh(1))
    same = jax.tree.map(lambda a, b: bool((numpy.asarray(a) == numpy.asarray(b)).all()),
                        state, expected)  # fmt: skip
    return all(jax.tree.leaves(same))


def kinds(base):
    """By step of the complete folders, "t" or "p"."""
    found = [json.loads(path.read_text()) for path in base.glob("step-*/metadata.json")]
    assert all(set(each) == {"step", "timestamp", "is_temporary"} for each in found)
    return {each["step"]: "t" if each["is_temporary"] else "p" for each in found}


@pytest.fixture
def open_one(runtime, tmp_path):
    opened = []

    def open_checkpointer(*arguments, base=tmp_path / "base", **options):
        opened.append(levanter.Checkpointer(base, *arguments, **options))
        return opened[-1]

    yield open_checkpointer
    for checkpointer in opened:
        checkpointer.abandon()


def test_folders_come_and_temporary_ones_go(open_one, tmp_path):
    base, clock, seen = tmp_path / "base", Clock(), []
    checkpointer = open_one(10 * SECOND, [CheckpointInterval(5)], dt_now_injection=clock)
    for step in range(12):
        clock.now += 4 * SECOND
        checkpointer.on_step(tree=state_of(step, mesh(4)), step=step)
        checkpointer.wait_until_finished()
        if not seen or seen[-1] != kinds(base):
            seen.append(kinds(base))
    assert seen == [{}, {3: "t"}, {5: "p"}, {5: "p", 8: "t"}, {5: "p", 10: "p"}]
    metadata = json.loads((base / "step-10" / "metadata.json").read_text())
    assert datetime.datetime.fromisoformat(metadata["timestamp"]) == BEGIN + 44 * SECOND


def test_temporary_folders_may_have_a_path_of_their_own(open_one, tmp_path, programs):
    base, fast, clock = tmp_path / "base", tmp_path / "fast", Clock()
    options = {"dt_now_injection": clock, "temporary_base_path": fast}
    checkpointer = open_one(SECOND, [CheckpointInterval(2)], **options)
    for step in (1, 2, 3):
        clock.now += SECOND
        checkpointer.on_step(tree=state_of(step, mesh(4)), step=step)
        checkpointer.wait_until_finished()
    assert (kinds(base), kinds(fast)) == ({2: "p"}, {3: "t"})
    checkpointer.abandon()
    lose_memory(programs)
    second = open_one(SECOND, [CheckpointInterval(2)], **options)
    assert is_of(second.load_or(state_of(0, mesh(2))), 3)


def test_the_older_temporary_one_stays_until_the_newer_is_complete(open_one, tmp_path):
    base, clock = tmp_path / "base", Clock()
    checkpointer = open_one(SECOND, dt_now_injection=clock)
    held = []
    for step in (1, 2):
        clock.now += SECOND
        checkpointer.on_step(tree=state_of(step, mesh(4)), step=step)
        if step == 1:
            checkpointer.wait_until_finished()
            stock = levanter._folders.os.rename  # The instant before the new one's metadata.

            def rename(old, new):
                if str(new).endswith("metadata.json"):
                    held.append(kinds(base))
                stock(old, new)

            levanter._folders.os.rename = rename
    try:
        checkpointer.wait_until_finished()
    finally:
        levanter._folders.os.rename = stock
    assert held == [{1: "t"}]
    assert kinds(base) == {2: "t"}


def test_what_a_run_left_temporary_goes_and_what_became_permanent_stays(open_one, tmp_path):
    base, clock = tmp_path / "base", Clock()
    first = open_one(SECOND, dt_now_injection=clock, keep_last_temporary_checkpoints=2)
    for step in (1, 2):
        clock.now += SECOND
        first.on_step(tree=state_of(step, mesh(4)), step=step)
        first.wait_until_finished()
    first.abandon()
    assert kinds(base) == {1: "t", 2: "t"}
    second = open_one(SECOND, dt_now_injection=clock, keep_last_temporary_checkpoints=2)
    assert is_of(second.load_or(state_of(0, mesh(2))), 2)
    for step in (3, 4):
        clock.now += SECOND
        second.on_step(tree=state_of(step, mesh(2)), step=step)
        second.wait_until_finished()
    assert kinds(base) == {3: "t", 4: "t"}
    path = base / "step-3" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "is_temporary": False}))
    clock.now += SECOND
    second.on_step(tree=state_of(5, mesh(2)), step=5)
    second.wait_until_finished()
    assert kinds(base) == {3: "p", 4: "t", 5: "t"}


def test_no_temporary_one_stays_where_none_is_to_be_kept(open_one, tmp_path):
    base, clock = tmp_path / "base", Clock()
    with pytest.raises(ValueError, match="keep_last_temporary_checkpoints: at least 0"):
        open_one(SECOND, keep_last_temporary_checkpoints=-1)
    checkpointer = open_one(SECOND, [CheckpointInterval(2)], dt_now_injection=clock,
                            keep_last_temporary_checkpoints=0)  # fmt: skip
    for step, stay in ((1, {}), (2, {2: "p"}), (3, {2: "p"})):
        clock.now += SECOND
        checkpointer.on_step(tree=state_of(step, mesh(4)), step=step)
        checkpointer.wait_until_finished()
        assert kinds(base) == stay
        assert (base / f"step-{step}").is_dir() == (step == 2)


def test_a_resume_takes_memory_when_it_is_newer_and_folders_when_it_is_lost(
    open_one, programs, caplog
):
    first = open_one(None, [CheckpointInterval(2)])
    assert is_of(first.load_or(state_of(0, mesh(4))), 0)  # There is nothing: no error.
    for step in (1, 2, 3):
        first.on_step(tree=state_of(step, mesh(4)), step=step)
    first.wait_until_finished()
    first._memory.session.wait(3, "committed")
    first.abandon()
    second = open_one(None, [CheckpointInterval(2)])
    assert is_of(second.load_or(state_of(0, mesh(2, 2))), 3)
    assert "libckpt: resumes step 3 from own memory; the newest folder is" in caplog.text
    assert caplog.text.count("resumes step 3") == 1
    second.abandon()
    lose_memory(programs)
    third = open_one(None, [CheckpointInterval(2)])
    assert is_of(third.load_or(state_of(0, mesh(1))), 2)
    third.on_step(tree=state_of(3, mesh(1)), step=3)
    third.on_step(tree=state_of(4, mesh(1)), step=4)
    third.wait_until_finished()
    assert third._memory.session.counts()["failed"] == 0


def test_a_resume_takes_the_place_that_is_named(open_one, tmp_path):
    def opened(**options):
        return open_one(None, [CheckpointInterval(2)], **options)

    first = opened()
    assert is_of(first.load_or(state_of(0, mesh(4)), source="memory"), 0)  # There is nothing.
    for step in (1, 2, 3):
        first.on_step(tree=state_of(step, mesh(4)), step=step)
    first.wait_until_finished()
    first._memory.session.wait(3, "committed")
    first.abandon()
    for source, step in (("memory", 3), ("storage", 2)):
        checkpointer = opened()
        assert is_of(checkpointer.load_or(state_of(0, mesh(4)), source=source), step)
        checkpointer.abandon()
    with pytest.raises(libckpt.InvalidArgument, match="source 'disk'"):
        opened().load_or(state_of(0, mesh(4)), source="disk")


def test_a_resume_from_one_place_does_not_begin_anew_over_the_other(open_one, tmp_path):
    first = open_one(None, [CheckpointInterval(2)], job="one")
    for step in (1, 2):
        first.on_step(tree=state_of(step, mesh(4)), step=step)
        first._memory.session.wait(step, "committed")  # So that the next step finds a Slot.
    first.wait_until_finished()
    first.abandon()
    with pytest.raises(libckpt.Unavailable, match="it has no step; .*step-2 is there"):
        open_one(job="another").load_or(state_of(0, mesh(4)), source="memory")
    with pytest.raises(libckpt.Unavailable, match="storage alone.* step 2 .*own memory"):
        elsewhere = open_one(job="one", base=tmp_path / "elsewhere")
        elsewhere.load_or(state_of(0, mesh(4)), source="storage")


def test_load_checkpoint_finds_the_newest_complete_one_below_a_folder(open_one, tmp_path):
    base = tmp_path / "base"
    checkpointer = open_one(None, [CheckpointInterval(1)], base=base / "run")
    for step in (1, 2, 3):
        checkpointer.on_step(tree=state_of(step, mesh(4)), step=step)
        checkpointer.wait_until_finished()
    (base / "run" / "step-3" / "metadata.json").unlink()  # It is not complete.
    like = state_of(0, mesh(2))
    for path in (base, base / "run", base / "run" / "step-2"):
        assert is_of(levanter.load_checkpoint(like, path), 2)
    assert levanter.discover_latest_checkpoint(base, max_step=1) == str(base / "run" / "step-1")
    assert levanter.discover_latest_checkpoint(tmp_path / "none") is None
    assert levanter.is_checkpoint_path(base / "run" / "step-1")
    assert not levanter.is_checkpoint_path(base / "run")
    for path in (tmp_path / "none", base / "run" / "step-3"):
        with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
            levanter.load_checkpoint(like, path)
    model = levanter.initialize_from(like["model"], base)
    assert is_of({**state_of(2, mesh(1)), "model": model}, 2)
    assert model["w"].sharding == like["model"]["w"].sharding


def test_a_save_that_fails_raises_nothing_into_training(open_one, caplog):
    checkpointer = open_one(None, [CheckpointInterval(1)])
    for step in (1, 2):
        checkpointer.on_step(tree={"x": object()}, step=step)
    assert caplog.text.count("training goes on") >= 1
    checkpointer.on_step(tree=state_of(3, mesh(4)), step=3)
    checkpointer.wait_until_finished()
    assert is_of(levanter.load_checkpoint(state_of(0, mesh(1)), checkpointer._base), 3)


def test_a_last_step_that_is_forced_after_it_came_fails_no_save(open_one, tmp_path, caplog):
    """As Levanter's Trainer calls its hooks."""
    checkpointer = open_one(None, [CheckpointInterval(10)])
    for step in (0, 1, 2):
        checkpointer.on_step(tree=state_of(step, mesh(4)), step=step)
    checkpointer.on_step(tree=state_of(2, mesh(4)), step=2, force=True)
    checkpointer.wait_until_finished()
    assert kinds(tmp_path / "base") == {2: "p"}
    assert checkpointer._memory.session.status()["failed"] == 0
    assert "training goes on" not in caplog.text


def test_a_resume_says_that_there_is_no_folder(open_one, caplog):
    checkpointer = open_one(None, [])
    checkpointer.on_step(tree=state_of(1, mesh(4)), step=1)
    checkpointer._memory.session.wait(1, "committed")
    checkpointer.abandon()
    assert is_of(open_one(None, []).load_or(state_of(0, mesh(4))), 1)
    assert "resumes step 1 from own memory; there is no folder" in caplog.text


def test_checkpoints_of_levanter_itself_are_named_where_they_are_newer(
    open_one, tmp_path, caplog
):
    theirs = tmp_path / "base" / "step-7"
    theirs.mkdir(parents=True)
    metadata = {"step": 7, "timestamp": BEGIN.isoformat(), "is_temporary": False}
    (theirs / "metadata.json").write_text(json.dumps(metadata))
    checkpointer = open_one(None, [CheckpointInterval(1)])
    assert is_of(checkpointer.load_or(state_of(0, mesh(4))), 0)
    assert f"{theirs} is a checkpoint of Levanter itself" in caplog.text
    caplog.clear()
    checkpointer.on_step(tree=state_of(8, mesh(4)), step=8)
    checkpointer.close()
    assert is_of(open_one(None, [CheckpointInterval(1)]).load_or(state_of(0, mesh(4))), 8)
    assert "of Levanter itself" not in caplog.text


def test_a_path_that_is_no_file_system_s_is_refused(runtime, tmp_path):
    """Folders would come to lie below a local one of that name."""
    with pytest.raises(libckpt.Unsupported, match="gs://bucket/run: folders"):
        levanter.Checkpointer("gs://bucket/run")
    with pytest.raises(libckpt.Unsupported, match="dir=\"s3://fast\""):
        levanter.Checkpointer(tmp_path / "base", temporary_base_path="s3://fast")
    with pytest.raises(libckpt.Unsupported, match="gs://bucket/run: folders"):
        levanter.load_checkpoint({}, "gs://bucket/run")


def test_the_best_steps_stay_among_those_of_the_memory_s_own_directory(open_one, tmp_path):
    checkpointer = open_one(None, [], dir=tmp_path / "best", save_storage_interval=1,
                            max_ckpt_num=1, keep_best=1, best_metric="loss")  # fmt: skip
    for step, loss in enumerate([3.0, 1.0, 2.0], 1):
        checkpointer.on_step(tree=state_of(step, mesh(4)), step=step, metrics={"loss": loss})
        checkpointer._memory.session.flush()  # Each step, so that all could be kept.
    checkpointer.close()
    kept = {each.step: each.metrics for each in
            libckpt.list_published(tmp_path / "best").checkpoints}  # fmt: skip
    assert kept == {2: {"loss": 1.0}, 3: {"loss": 2.0}}
    assert kinds(tmp_path / "base") == {}


def test_disabled_it_does_nothing(open_one, tmp_path, monkeypatch):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    checkpointer = open_one(None, [CheckpointInterval(1)])
    checkpointer.on_step(tree=state_of(1, mesh(4)), step=1)
    checkpointer.wait_until_finished()
    assert is_of(checkpointer.load_or(state_of(0, mesh(4))), 0)
    assert kinds(tmp_path / "base") == {}


def test_disabled_it_does_not_begin_anew_over_a_folder_that_it_may_not_read(
    open_one, tmp_path, monkeypatch
):
    checkpointer = open_one(None, [CheckpointInterval(1)])
    checkpointer.on_step(tree=state_of(1, mesh(4)), step=1)
    checkpointer.close()
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    disabled = open_one(None, [CheckpointInterval(1)])
    with pytest.raises(libckpt.Unsupported, match="load .*step-1: libckpt is disabled"):
        disabled.load_or(state_of(0, mesh(4)))
    with pytest.raises(libckpt.Unsupported, match="load .*step-1: libckpt is disabled"):
        disabled.load_or(state_of(0, mesh(4)), source="memory")  # Which is ignored.
    disabled.abandon()
    monkeypatch.delenv("LIBCKPT_DISABLE")
    assert is_of(open_one(None, [CheckpointInterval(1)]).load_or(state_of(0, mesh(4))), 1)


def test_what_a_run_had_captured_when_it_died_is_published_by_the_next(
    open_one, tmp_path, monkeypatch
):
    base = tmp_path / "base"
    checkpointer = open_one(None, [CheckpointInterval(1)])
    stock = levanter._folders.os.rename

    def die(old, new):
        if str(new).endswith("metadata.json"):
            raise OSError("the process dies here")
        stock(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(levanter._folders.os, "rename", die)
        checkpointer.on_step(tree=state_of(1, mesh(4)), step=1)
        checkpointer.abandon()
    assert (base / "step-1" / "manifest.json").exists()
    assert levanter.discover_latest_checkpoint(base) is None  # It is not complete.
    second = open_one(None, [CheckpointInterval(1)])
    assert kinds(base) == {1: "p"}
    assert is_of(levanter.load_checkpoint(state_of(0, mesh(2)), base), 1)
    assert is_of(second.load_or(state_of(0, mesh(2))), 1)


@pytest.fixture
def training(runtime, tmp_path):
    found = Training(tmp_path)
    found.program = "levanter_steps.py"
    yield found
    found.stop()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_training_goes_on_bit_for_bit(training, programs, tmp_path, processes):
    expected = training.start(processes, "2x2", tmp_path / "whole", 8).finish()
    base = tmp_path / "base"
    made = training.start(processes, "2x2", base, 8, hold_at=3).kill_when_it_holds()
    assert made == {step: expected[step] for step in made}
    made = training.start(processes, "2x2", base, 8, hold_at=7).kill_when_it_holds()
    step, digest, *_ = training.began()
    assert step >= 2
    assert digest == expected[step][1]
    lose_memory(programs)
    made = training.start(processes, "2x2", base, 8).finish()
    assert training.began()[0] == 4
    assert made == {step: expected[step] for step in range(5, 9)}
    assert kinds(base) == {4: "p", 8: "p"}


@pytest.mark.slow
def test_another_number_of_devices_goes_on_from_memory_and_from_folders(
    training, programs, tmp_path, monkeypatch
):
    """8 -> 4 -> 8 devices; the last ones have a folder alone."""
    monkeypatch.setenv("WAITS", "60")
    base, made = tmp_path / "base", {}
    for step, devices, on in [(3, 8, "2x4"), (6, 4, "4")]:
        training.start(1, on, base, step, hold_at=step, devices=devices)
        made |= training.kill_when_it_holds()
    began, digest, *_ = training.began()
    assert began == 3
    assert digest == made[began][1]
    lose_memory(programs)
    training.start(1, "8", base, 8, devices=8).finish()
    began, digest, *_ = training.began()
    assert began == 4
    assert digest == made[began][1]
