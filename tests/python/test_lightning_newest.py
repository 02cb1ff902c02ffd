"""Goal: NEWEST leads a fit to files that it can go on from, an evaluation to weights, and neither
to an error that nobody understands.

Method: fits and evaluations with files that ModelCheckpoint saves, whole or with the weights alone.
"""

import os
import subprocess

import pytest

torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch")

import libckpt.lightning  # noqa: E402

NEWEST = libckpt.lightning.NEWEST


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.began = torch.nn.Linear(1, 1), None

    def on_train_start(self):
        self.began = self.global_step

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def test_step(self, batch, _):
        self.log("weight", self.layer.weight.item())

    validation_step = test_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


DATA = torch.utils.data.DataLoader(torch.ones(9, 1))


def trainer_of(root, *callbacks, steps=3, has_plugin=True, has_callback=True):
    callbacks = [*callbacks, *([libckpt.lightning.Callback()] if has_callback else [])]
    return pl.Trainer(
        default_root_dir=root, accelerator="cpu", devices=1, max_steps=steps, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        plugins=[libckpt.lightning.CheckpointIO()] if has_plugin else [],
        enable_checkpointing=any(isinstance(one, pl.callbacks.ModelCheckpoint)
                                 for one in callbacks),
    )  # fmt: skip


def files(root, name, every=1, **options):
    return pl.callbacks.ModelCheckpoint(root / name, every_n_train_steps=every, **options)


def test_a_fit_passes_over_files_that_have_the_weights_alone(runtime, tmp_path, programs, caplog):
    whole = files(tmp_path, "whole", 3)
    trainer_of(tmp_path, whole).fit(Module(), DATA)
    weights = files(tmp_path, "weights", save_weights_only=True, save_top_k=-1)
    trainer_of(tmp_path, weights, steps=5).fit(Module(), DATA)
    (newest,) = (tmp_path / "weights").glob("*step=5.ckpt")
    os.utime(newest)  # So that it is the newest of all.
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)
    module = Module()
    weights = files(tmp_path, "weights", save_weights_only=True)
    trainer_of(tmp_path, files(tmp_path, "whole", 3), weights, steps=4).fit(
        module, DATA, ckpt_path=NEWEST
    )
    assert module.began == 3
    assert f"{newest} is not resumed from, and 4 older: it has the weights alone" in caplog.text


def test_an_evaluation_takes_a_file_with_the_weights_alone(runtime, tmp_path):
    trained = Module()
    callbacks = files(tmp_path, "weights", save_weights_only=True)
    trainer_of(tmp_path, callbacks).fit(trained, DATA)
    (found,) = trainer_of(tmp_path, callbacks).test(Module(), DATA, ckpt_path=NEWEST)
    assert found["weight"] == pytest.approx(trained.layer.weight.item())


@pytest.mark.parametrize("stage", ["test", "validate"])
@pytest.mark.parametrize("path", [NEWEST, f"{NEWEST}?source=memory"])
def test_an_evaluation_without_weights_is_none(runtime, tmp_path, stage, path):
    trainer_of(tmp_path).fit(Module(), DATA, ckpt_path=NEWEST)  # Memory has its steps.
    evaluate = getattr(trainer_of(tmp_path), stage)
    with pytest.raises(libckpt.NotFound, match=f"{stage} with ckpt_path=NEWEST: there is no file"):
        evaluate(Module(), DATA, ckpt_path=path)
    module = Module()
    trainer_of(tmp_path, steps=4).fit(module, DATA, ckpt_path=NEWEST)
    assert module.began == 3  # The evaluation left memory as it was.


@pytest.mark.parametrize("given, missing", [
    ({"has_plugin": False}, "no libckpt.lightning.CheckpointIO among its plugins"),
    ({"has_callback": False}, "no libckpt.lightning.Callback among its callbacks"),
])  # fmt: skip
def test_newest_without_one_of_the_two_names_that_one(runtime, tmp_path, given, missing):
    with pytest.raises(libckpt.InvalidArgument, match=missing):
        trainer_of(tmp_path, **given).fit(Module(), DATA, ckpt_path=NEWEST)
