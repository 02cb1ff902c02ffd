"""Goal: the next fit puts in its place what a killed one had captured, before it takes the newest
file, and nothing but a fit does.

Method: a file that was captured and not put in its place is left beside an older one; then a fit,
or an evaluation, begins.
"""

import types

import pytest

torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch")

import libckpt.lightning  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402
from test_lightning import Wide, fit_wide  # noqa: E402


@pytest.fixture
def left(runtime, tmp_path):
    """The path of a file that a killed run left, beside the older one of a whole run."""
    fit_wide(tmp_path, pl.callbacks.ModelCheckpoint())
    (older,) = (tmp_path / "checkpoints").glob("*.ckpt")
    io, path = libckpt.lightning.CheckpointIO(), older.with_name("left.ckpt")
    io.save_checkpoint(torch.load(older, weights_only=False), path)
    for queue in [one for one in _publish_queue._queues if one.waiting]:
        queue.waiting.clear()
        _publish_queue._queues.remove(queue)
        queue.session.abandon()
    for queue in list(_publish_queue._queues):
        queue.end()
    assert older.exists() and not path.exists()
    yield path
    for queue in list(_publish_queue._queues):
        queue.end()


def trainer_of(root, **options):
    return pl.Trainer(
        default_root_dir=root, accelerator="cpu", max_epochs=1, logger=False,
        plugins=[libckpt.lightning.CheckpointIO()], enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip


def test_a_fit_without_dirpath_takes_what_the_killed_one_had_captured(left, tmp_path, monkeypatch):
    found, stock = [], libckpt.lightning.Callback._find_file

    def find(callback):
        found.append(stock(callback)[0])
        return stock(callback)

    monkeypatch.setattr(libckpt.lightning.Callback, "_find_file", find)
    callbacks = [libckpt.lightning.Callback(), pl.callbacks.ModelCheckpoint()]
    batches = torch.utils.data.DataLoader(torch.ones(3, 4096))
    trainer = trainer_of(tmp_path, callbacks=callbacks)
    trainer.fit(Wide(), batches, ckpt_path=libckpt.lightning.NEWEST)
    assert found == [str(left)]


def test_an_evaluation_leaves_the_notes_to_a_fit(left, tmp_path):
    """The run that they are of may be training beside it."""
    work = left.parent / ".libckpt" / "lightning-work"
    noted = sorted(work.glob("*.json"))
    callbacks = [libckpt.lightning.Callback(), pl.callbacks.ModelCheckpoint(left.parent)]
    trainer = trainer_of(tmp_path, callbacks=callbacks)
    trainer.validate(Wide(), torch.utils.data.DataLoader(torch.ones(3, 4096)))
    assert sorted(work.glob("*.json")) == noted != []
    assert not left.exists()


def test_without_a_session_all_ranks_take_the_file_that_rank_0_found():
    """With LIBCKPT_DISABLE=1: a rank that looked by itself would begin anew beside the others."""
    callback = libckpt.lightning.Callback()
    found = ("model.ckpt", 7, None)
    callback._trainer = types.SimpleNamespace(
        is_global_zero=False, strategy=types.SimpleNamespace(broadcast=lambda own: found)
    )
    assert callback.session is None
    assert callback._newest_file() == found
