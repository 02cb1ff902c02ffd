"""Goal: a training that ends before it is done keeps its memory, and one that begins without asking
for a step that is there names it, and how it is had.

Method: small fits of Lightning and trainings of Transformers in this process, one after the other
in one directory.
"""

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

LEFT = "behind, which is in memory: to go on from such a step, "


def left(caplog):
    found = [each for each in caplog.messages if " leaves step " in each]
    caplog.clear()
    return found


def newest(job):
    """The step that a restart would take; 0: none."""
    with pytest.MonkeyPatch.context():
        session = libckpt.init(job)
        step = session.restore_or({}, 0)
        session.abandon()
    return step


# --- Lightning


class Fits:
    def __init__(self, root):
        self.pl = pytest.importorskip("lightning.pytorch")
        self.root, self.began = root, None

    def module(self):
        fits = self

        class Module(self.pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def on_train_start(self):
                fits.began = self.global_step

            def training_step(self, batch, _):
                return self.layer(batch).square().mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return Module()

    def fit(self, path=None, stop=None, every=4, callback=None, trainer=None, **options):
        """A fit whose training is stopped behind that step, as a Timer or a signal does it."""
        import libckpt.lightning

        pl, callback = self.pl, callback or libckpt.lightning.Callback(job="job", **options)

        class Stop(pl.Callback):
            def on_train_batch_end(self, trainer, *_):
                if callback._captured > 0:  # So that the next step finds a Slot.
                    callback.session.finish_capture()
                    callback.session.wait(callback._captured, "committed")
                if trainer.global_step == stop:
                    trainer.should_stop = True

            def on_train_end(self, trainer, _):
                self.on_train_batch_end(trainer)

        files = pl.callbacks.ModelCheckpoint(self.root / "files", every_n_train_steps=every)
        trainer = trainer or pl.Trainer(
            max_steps=8, default_root_dir=self.root, logger=False, accelerator="cpu", devices=1,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[callback, files, Stop()], plugins=[libckpt.lightning.CheckpointIO()],
        )  # fmt: skip
        trainer.fit(self.module(), torch.ones(20, 1), ckpt_path=path)
        return trainer, callback


@pytest.fixture
def fits(runtime, tmp_path):
    return Fits(tmp_path)


def test_a_fit_that_is_stopped_before_its_last_step_keeps_its_memory(fits, caplog):
    import libckpt.lightning

    fits.fit(stop=6)
    assert newest("job") == 6
    fits.fit(libckpt.lightning.NEWEST)
    assert fits.began == 6  # The newest file has step 4.
    assert newest("job") == 0  # It came to its end, and the last step has a file.
    assert left(caplog) == []


def test_a_fit_whose_last_step_has_no_file_keeps_its_memory(fits):
    fits.fit(every=5)
    assert newest("job") == 8


def test_a_fit_that_is_stopped_has_its_last_step_in_its_directory(fits, tmp_path):
    options = {"dir": tmp_path / "dir", "save_storage_interval": 100}
    fits.fit(stop=6, **options)
    assert [each.step for each in libckpt.list_published(tmp_path / "dir").checkpoints] == [6]


def test_a_fit_that_begins_beside_a_step_in_memory_names_it(fits, caplog):
    fits.fit(stop=6)
    fits.fit(stop=7)
    (message,) = left(caplog)
    assert "job job begins anew, and leaves step 6 " + LEFT in message
    assert message.endswith("fit with ckpt_path=libckpt.lightning.NEWEST")
    fits.fit(fits.root / "files" / "epoch=0-step=4.ckpt", stop=8)  # As of "last".
    (message,) = left(caplog)
    assert "job job begins at step 4, and leaves step 7 " + LEFT in message
    assert fits.began == 4


def test_a_second_fit_of_the_trainer_leaves_nothing_behind(fits, caplog):
    trainer, callback = fits.fit(stop=6)
    fits.fit(stop=7, trainer=trainer, callback=callback)
    assert left(caplog) == []


# --- Transformers


def settle(session):
    """Returns the newest step that was captured, once it is committed."""
    session.finish_capture()
    captured = session.counts()["captured"]
    if captured is not None:
        session.wait(captured, "committed")
    return captured


@pytest.fixture
def train(runtime, tmp_path):
    transformers = pytest.importorskip("transformers")
    import libckpt.transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x, labels=None):
            return {"loss": (self.layer(x) - labels).square().mean()}

    class Stop(transformers.TrainerCallback):
        def __init__(self, callback, at):
            self.callback, self.at = callback, at

        def on_step_end(self, args, state, control, **_):
            settle(self.callback._memory.session)  # So that the next step finds a Slot.
            control.should_training_stop = state.global_step == self.at

    def make(stop, **options):
        settings = transformers.TrainingArguments(
            str(tmp_path), max_steps=16, report_to=[], use_cpu=True, save_steps=4, **options
        )
        callback = libckpt.transformers.Callback(job="job")
        data = [{"x": torch.ones(2), "labels": torch.ones(2)}] * 40
        trainer = transformers.Trainer(Model(), settings, train_dataset=data,
                                       callbacks=[callback, Stop(callback, stop)])  # fmt: skip
        return trainer, callback

    def run(stop, resume=None):
        trainer, callback = make(stop)
        trainer.train(resume_from_checkpoint=resume)
        session = callback._memory.session
        captured = settle(session)
        session.abandon()
        return captured

    run.make = make
    return run


def test_a_training_that_begins_beside_a_step_in_memory_names_it(train, tmp_path, caplog):
    assert train(14) > 4
    step = newest("job")
    assert train(13) > 4
    (message,) = left(caplog)
    assert f"job job begins anew, and leaves step {step} " + LEFT in message
    assert message.endswith("call train(resume_from_checkpoint=True)")
    step = newest("job")
    train(14, str(tmp_path / "checkpoint-4"))
    (message,) = left(caplog)
    assert f"job job begins at step 4, and leaves step {step} " + LEFT in message


def test_one_that_asks_or_trains_a_second_time_leaves_nothing_behind(train, caplog):
    train(13)
    caplog.clear()
    assert train(14, True) > 4
    trainer, callback = train.make(14)
    trainer.train(resume_from_checkpoint=True)
    trainer.train()
    callback._memory.session.abandon()
    assert left(caplog) == []
