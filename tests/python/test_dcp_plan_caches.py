"""Goal: a planner of DCP that keeps its plans serves memory and folders in turn; and a failure in a
save into memory, whatever raises it, does not go into training.

Method: one process with a planner that caches plans saves into memory, into a folder, and again,
and loads each of them; then a planner that raises.
"""

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: E402

from test_dcp import alone, loaded  # noqa: E402, F401

import libckpt.dcp  # noqa: E402

if not hasattr(DefaultSavePlanner, "_cached_save_plan"):
    pytest.skip("this DCP keeps no plans", allow_module_level=True)


@pytest.fixture
def planner():
    """The class of a planner with caches of its own."""

    class Keeping(DefaultSavePlanner):
        def __init__(self):
            super().__init__(enable_plan_caching=True)

    name, caches = Keeping.__name__, [
        each for each in vars(dcp.planner.SavePlanner) if each.startswith("_cached_")
    ]  # fmt: skip
    yield Keeping
    for cache in caches:
        getattr(dcp.planner.SavePlanner, cache).pop(name, None)


@pytest.mark.parametrize("order", ["mfmf", "fmfm"], ids=["memory first", "folder first"])
def test_plans_that_are_kept_serve_memory_and_folders(
    alone, runtime, tmp_path, planner, order  # noqa: F811
):
    storage = alone("ckpt://job", raise_on_error=True)
    for step, place in enumerate(order, start=1):
        base = "ckpt://job" if place == "m" else str(tmp_path)
        dcp.save({"value": torch.full((5,), float(step)), "step": step},
                 checkpoint_id=f"{base}/step-{step}", storage_writer=storage,
                 planner=planner())  # fmt: skip
        found = loaded(storage, f"{base}/step-{step}", value=torch.zeros(5), step=0)
        assert found["step"] == step
        assert found["value"].unique().tolist() == [step]
        if place == "f":  # By stock DCP, too.
            found = {"value": torch.zeros(5)}
            dcp.load(found, checkpoint_id=f"{base}/step-{step}")
            assert found["value"].unique().tolist() == [step]


def test_plans_that_were_kept_for_dcps_own_writer_serve_memory(
    alone, runtime, tmp_path, planner  # noqa: F811
):
    storage = alone("ckpt://job", raise_on_error=True)
    for step, to in ((1, {"checkpoint_id": tmp_path / "stock"}),
                     (2, {"checkpoint_id": "ckpt://job/step-2", "storage_writer": storage}),
                     (3, {"checkpoint_id": tmp_path / "other"})):  # fmt: skip
        dcp.save({"value": torch.full((5,), float(step))}, planner=planner(), **to)
    found = loaded(storage, "ckpt://job/step-2", value=torch.zeros(5))
    assert found["value"].unique().tolist() == [2]


class Broken(DefaultSavePlanner):
    def resolve_data(self, item):
        raise TypeError("no such value")


def test_an_error_of_a_planner_does_not_go_into_training(alone, runtime, caplog):  # noqa: F811
    storage, state = alone("ckpt://job"), {"value": torch.ones(3)}
    dcp.save(state, checkpoint_id="ckpt://job/step-1", storage_writer=storage, planner=Broken())
    assert "job/step-1 was not captured: TypeError: no such value" in caplog.text
    dcp.save(state, checkpoint_id="ckpt://job/step-2", storage_writer=storage)
    assert storage.find() == 2


def test_with_raise_on_error_it_does(alone, runtime):  # noqa: F811
    storage = alone("ckpt://job", raise_on_error=True)
    with pytest.raises(BaseException, match="not captured: TypeError: no such value"):
        dcp.save({"value": torch.ones(3)}, checkpoint_id="ckpt://job/step-1",
                 storage_writer=storage, planner=Broken())  # fmt: skip
