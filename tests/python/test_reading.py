"""Goal: a checkpoint is read without its job: into items, into new ones, weights only, shapes only.
What does not fit is refused by name, or reported.

Method: jobs of one and of two ranks publish; then sessions of other jobs, and no session at all,
read from memory and from the path.
"""

import logging
import subprocess

import numpy
import pytest
from test_arrays import at_once

import libckpt

torch = pytest.importorskip("torch")
F32 = "F32"


def model_of(value, width=3):
    model = torch.nn.Linear(width, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


@pytest.fixture
def run(job, tmp_path):
    """The directory of a run with one step of a model, its optimizer, and the progress."""
    session, model = job("base", dir=tmp_path / "base", save_storage_interval=1), model_of(2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    items = {"model": model, "optimizer": optimizer, "progress": {"epoch": 9}}
    session.save(100, items).durable.result(60)
    session.abandon()
    return tmp_path / "base"


def test_load_checkpoint_fills_items_and_makes_new_ones(run):
    model = model_of(0.0)
    loaded = libckpt.load_checkpoint(run, {"model": model})
    assert loaded.step == 100
    assert model.weight.eq(2).all()
    fresh = libckpt.load_checkpoint(run).items
    assert fresh["model"]["weight"].eq(2).all()
    assert fresh["progress"] == {"epoch": 9}


def test_load_checkpoint_starts_no_daemon(run, runtime, programs):
    subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                   capture_output=True)  # fmt: skip
    assert libckpt.load_checkpoint(run).step == 100
    status = subprocess.run([programs / "ckpt", "status"], timeout=60, capture_output=True,
                            text=True, check=False)  # fmt: skip
    assert status.returncode != 0, status.stdout


def test_load_checkpoint_has_the_words_of_a_path_that_has_nothing(tmp_path, runtime, monkeypatch):
    with pytest.raises(libckpt.NotFound, match="nothing-here"):
        libckpt.load_checkpoint(tmp_path / "nothing-here")
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    with pytest.raises(libckpt.Unsupported, match="libckpt is disabled"):
        libckpt.load_checkpoint(tmp_path / "nothing-here")


def test_other_training_begins_with_weights_only(run, job, caplog):
    session, model = job("tuned"), model_of(0.0)
    assert session.restore_or({"model": model}) is None
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        found = session.initialize_from(run, {"model": model})
    assert model.weight.eq(2).all()
    assert found.step == 100
    assert "not given to restore" not in caplog.text
    session.save(1, {"model": model}).captured.result(30)  # Steps count anew.
    assert session.restore({"model": model}).step == 1


def test_a_failed_beginning_refuses_saves_and_a_good_one_heals_no_failed_restore(run, job):
    session = job("tuned")
    with pytest.raises(libckpt.InvalidArgument, match="is F32"):
        session.initialize_from(run, {"model": model_of(0.0, width=4)})
    session.initialize_from(run, {"model": model_of(0.0)})
    with pytest.raises(libckpt.InvalidArgument, match="the restore before it failed"):
        session.save(1, {})


def test_an_error_names_what_is_missing_and_what_there_is(run, job):
    other = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with pytest.raises(libckpt.InvalidArgument) as refused:
        job().restore({"model": other}, path=run)
    text = str(refused.value)
    assert "model.0.weight" in text
    assert "It has model.weight, model.bias" in text or "It has model.bias, model.weight" in text


@pytest.mark.parametrize("from_path", [False, True])
def test_a_lenient_restore_reports_what_did_not_fit(run, job, caplog, from_path):
    class Wider(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2, 4))
            self.scale = torch.nn.Parameter(torch.zeros(1))

    session, model = job("base", dir=run), Wider()
    with caplog.at_level(logging.WARNING, logger="libckpt"):
        found = session.restore({"model": model}, strict=False, path=run if from_path else None)
    assert found.missing == ["model.scale"]
    assert found.unexpected == ["model.bias"]
    assert found.mismatched == {"model.weight": "F32 [2, 4] here and F32 [2, 3] there"}
    assert model.weight.eq(0).all()
    assert "1 tensor(s) of this trainer are not in the step, and stay as they are: model.scale" in (
        caplog.text
    )
    assert '"model.weight" is F32 [2, 4] here and F32 [2, 3] there' in caplog.text


def test_a_restore_that_fits_reports_what_nobody_asked_for(run, job):
    session = job("base", dir=run)
    found = session.restore({"model": model_of(0.0), "progress": {}}, strict=False)
    assert (found.missing, found.unexpected, found.mismatched) == ([], [], {})
    found = session.restore({"progress": {}})
    assert found.unexpected == ["model.bias", "model.weight"]


@pytest.mark.parametrize("from_path", [False, True])
def test_shapes_come_without_tensors(run, job, from_path):
    session = job("base", dir=run)
    found = session.restore(path=run if from_path else None, shapes_only=True)
    assert found.step == 100
    assert found.items["model"] == {
        "weight": libckpt.TensorShape((2, 3), F32), "bias": libckpt.TensorShape((2,), F32)
    }  # fmt: skip
    assert found.items["progress"] == {"epoch": 9}
    names = found.items["optimizer"]["param_groups"][0]["params"]
    assert names == ["model.weight", "model.bias"]


def test_saves_wait_for_a_restore_after_shapes(run, job):
    session, items = job("base", dir=run), {"model": model_of(0.0)}
    session.restore(shapes_only=True)
    with pytest.raises(libckpt.InvalidArgument, match="only the shapes of step 100 were read"):
        session.save(101, items)
    session.restore(items)
    session.save(101, items).captured.result(30)
    with pytest.raises(libckpt.InvalidArgument, match="shapes_only fills nothing"):
        session.restore(items, shapes_only=True)


def test_shapes_of_arrays_are_those_of_the_whole(job, tmp_path):
    sessions = [job(dir=tmp_path / "run", save_storage_interval=1, rank=rank, world_size=2)
                for rank in (0, 1)]  # fmt: skip

    def save(rank, session):
        rows = libckpt.Array("w", numpy.ones((4, 3), numpy.float32), global_shape=(8, 3),
                             offset=(4 * rank, 0))  # fmt: skip
        flat = libckpt.Array("m", numpy.ones(12, numpy.float64), global_shape=(8, 3),
                             flat=12 * rank)  # fmt: skip
        session.save(1, {"t": torch.ones(5)}, arrays=[rows, flat]).durable.result(60)

    at_once(sessions, save)
    found = libckpt.load_checkpoint(tmp_path / "run", shapes_only=True)
    assert found.arrays == {
        "w": libckpt.TensorShape((8, 3), F32), "m": libckpt.TensorShape((8, 3), "F64")
    }  # fmt: skip
    assert found.items == {"t": libckpt.TensorShape((5,), F32)}


def test_arrays_are_loaded_whatever_number_of_ranks_saved_them(job, tmp_path):
    values = numpy.arange(24, dtype=numpy.float32).reshape(8, 3)
    sessions = [job(dir=tmp_path / "run", save_storage_interval=1, rank=rank, world_size=2)
                for rank in (0, 1)]  # fmt: skip

    def save(rank, session):
        rows = libckpt.Array("w", values[4 * rank : 4 * rank + 4].copy(), global_shape=(8, 3),
                             offset=(4 * rank, 0))  # fmt: skip
        session.save(1, {}, arrays=[rows]).durable.result(60)

    at_once(sessions, save)
    into = numpy.zeros(10, numpy.float32)
    part = libckpt.Array("w", into, global_shape=(8, 3), flat=7)
    libckpt.load_checkpoint(tmp_path / "run", arrays=[part])
    assert (into == values.reshape(-1)[7:17]).all()
