"""Goal: which steps are saved, as what, and which folders stay is what Levanter itself decides.

Method: the same training, in the same time, under libckpt's Checkpointer and under marin-levanter's
own one. Levanter's package is loaded without its __init__, which imports its models and loaders:
only its checkpoints are asked.
"""

import datetime
import importlib.util
import inspect
import json
import os
import random
import sys
import types

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # Before JAX is used.
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import libckpt  # noqa: E402
from libckpt import levanter  # noqa: E402
from libckpt.levanter import _policy  # noqa: E402

SECOND = datetime.timedelta(seconds=1)
STEPS = 14


@pytest.fixture(scope="module")
def stock():
    """Levanter's module of checkpoints."""
    found = importlib.util.find_spec("levanter")
    if found is None:
        pytest.skip("marin-levanter is not installed")
    package = types.ModuleType("levanter")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["levanter"] = package
    try:
        import levanter.checkpoint as checkpoint

        yield checkpoint
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == "levanter"]:
            del sys.modules[name]


class Clock:
    def __init__(self):
        self.now = datetime.datetime(2026, 1, 1)

    def __call__(self):
        return self.now


def drawn(chance):
    """A policy, and for each step its seconds and whether its save is forced."""
    untils = sorted(chance.sample(range(1, STEPS + 4), chance.randint(0, 3)))
    if untils and chance.random() < 0.5:
        untils[-1] = None
    intervals = [(chance.randint(1, 5), until) for until in untils]
    interval = chance.choice([None, 0, 3, 8, 20])
    first = chance.choice([0, 0, 1, 5])
    steps = [(first + number, chance.randint(0, 9), chance.random() < 0.1)
             for number in range(STEPS)]  # fmt: skip
    if chance.random() < 0.3:  # The last step is forced again, as at the end of a training.
        steps.append((steps[-1][0], 0, True))
    return interval, intervals, steps


def test_the_same_steps_are_saved_as_the_same_kind(stock, tmp_path, monkeypatch):
    saved = []

    def save(self, *, step, is_temporary, **_):
        saved.append((step, "temporary" if is_temporary else "permanent"))
        self._last_save_step, self._last_save_time = step, self._dt_now_injection()

    monkeypatch.setattr(stock.Checkpointer, "save_checkpoint", save)
    kinds = set()
    for seed in range(200):
        interval, intervals, steps = drawn(random.Random(seed))
        interval = None if interval is None else interval * SECOND
        clock = Clock()
        theirs = stock.Checkpointer(
            tmp_path, interval, [stock.CheckpointInterval(*each) for each in intervals],
            dt_now_injection=clock,
        )  # fmt: skip
        ours = _policy.Policy(interval, [levanter.CheckpointInterval(*each) for each in intervals],
                              clock)  # fmt: skip
        saved.clear()
        decided = []
        for step, seconds, is_forced in steps:
            clock.now += seconds * SECOND
            theirs.on_step(tree={}, step=step, force=is_forced)
            kind = ours.decide(step, is_forced)
            if kind is not None:
                decided.append((step, kind))
                ours.saved(step)
        assert decided == saved, seed
        kinds.update(kind for _, kind in saved)
    assert kinds == {"temporary", "permanent"}


def folders(base):
    """By name, whether it is temporary."""
    return {path.parent.name: json.loads(path.read_text())["is_temporary"]
            for path in base.glob("step-*/metadata.json")}  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_the_same_folders_stay_after_each_step(stock, runtime, tmp_path, seed):
    chance = random.Random(seed)
    intervals = [(3, 6), (5, None)] if seed % 2 else [(4, 8)]
    keep = seed // 2
    clock, opened = Clock(), []
    for kind, name in ((stock, "theirs"), (levanter, "ours")):
        opened.append((tmp_path / name, kind.Checkpointer(
            tmp_path / name, 6 * SECOND, [kind.CheckpointInterval(*each) for each in intervals],
            dt_now_injection=clock, keep_last_temporary_checkpoints=keep,
        )))  # fmt: skip
    seen = set()
    for step in range(1, 12):
        clock.now += chance.randint(2, 7) * SECOND
        tree = {"model": {"w": jnp.arange(8.0) + step}, "step": jnp.asarray(step)}
        for _, checkpointer in opened:
            checkpointer.on_step(tree=tree, step=step)
            checkpointer.wait_until_finished()
        (theirs, _), (ours, ckpt) = opened
        assert folders(ours) == folders(theirs), step
        newest = levanter.discover_latest_checkpoint(ours)
        assert newest == stock.discover_latest_checkpoint(str(ours))
        seen.update(folders(ours).values())
    assert seen == ({True, False} if keep else {False})
    ckpt.abandon()


def test_the_same_policies_are_refused(stock, tmp_path):
    for intervals in ([(2, None), (3, 5)], [(2, 5), (3, 5)], [(2, 5), (3, 4)]):
        for kind in (stock, levanter):
            given = [kind.CheckpointInterval(*each) for each in intervals]
            with pytest.raises(ValueError, match="(?i)step.policies|step policy"):
                kind.Checkpointer(tmp_path, None, given)


def parameters(function):
    return {name: each.default for name, each in inspect.signature(function).parameters.items()}


def test_all_arguments_of_levanter_s_are_taken_or_refused_by_name(stock, tmp_path):
    """Oracle: the signatures of the real package."""
    own = parameters(levanter.Checkpointer)
    assert parameters(stock.Checkpointer).keys() <= own.keys()
    theirs, own = parameters(stock.load_checkpoint), parameters(levanter.load_checkpoint)
    for name in theirs.keys() - {"tree", "checkpoint_path"}:
        assert own[name] == theirs[name]
    enabled = stock.CheckpointDebugConfig(enabled=True)
    for name, given in {"keep_params": {"model": True}, "debug": enabled}.items():
        with pytest.raises(libckpt.Unsupported, match=name):
            levanter.Checkpointer(tmp_path, **{name: given})
    for name in ("axis_mapping", "mesh"):
        with pytest.raises(libckpt.Unsupported, match=f"{name} is not taken"):
            levanter.load_checkpoint({}, tmp_path, **{name: object()})


def test_a_configuration_of_diagnostics_that_is_not_enabled_changes_nothing(
    stock, runtime, tmp_path
):
    made = levanter.Checkpointer(tmp_path, debug=stock.CheckpointDebugConfig())
    made.abandon()


@pytest.mark.parametrize("is_shape", [False, True])
def test_a_leaf_that_a_checkpoint_lacks_may_stay_as_it_is(runtime, tmp_path, is_shape):
    made = levanter.Checkpointer(tmp_path, None, [levanter.CheckpointInterval(1)])
    made.load_or({"a": jnp.zeros(4)})
    made.on_step(tree={"a": jnp.ones(4)}, step=1)
    made.wait_until_finished()
    made.abandon()
    more = jnp.full(3, 7.0)
    more = jax.ShapeDtypeStruct(more.shape, more.dtype) if is_shape else more
    with pytest.raises(libckpt.InvalidArgument, match='"b" is not in the checkpoint'):
        levanter.load_checkpoint({"a": jnp.zeros(4), "b": more}, tmp_path)
    found = levanter.load_checkpoint({"a": jnp.zeros(4), "b": more}, tmp_path, allow_partial=True)
    assert found["a"].tolist() == [1.0] * 4
    assert found["b"] is more
    with pytest.raises(libckpt.InvalidArgument):  # Another shape is no lack.
        levanter.load_checkpoint({"a": jnp.zeros(5)}, tmp_path, allow_partial=True)
