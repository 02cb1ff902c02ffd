"""Goal: where no daemon can be had, doors with a framework's own folders load the newest of these,
and do not begin anew over steps in `dir` that they cannot restore.

Method: a session of the same job stores a step; then the program of the daemon is not there, and
each door resumes: over that step, over another job's, and with a folder of the framework's own.
test_unopened.py and test_jax_unopened.py have the same of doors that have libckpt's checkpoints.
"""

import types

import pytest

import libckpt

torch = pytest.importorskip("torch")

JOB = "stored"
REFUSED = r"ckptd.*step 5 in .* cannot be restored, and training must not begin anew over it"


@pytest.fixture
def steps(runtime, monkeypatch, tmp_path):
    """A directory with step 5 of the job, and no daemon to read it."""
    with libckpt.init(JOB, tmp_path / "steps") as session:
        session.restore_or({"x": torch.zeros(2)})
        session.save(5, {"x": torch.ones(2)}, wait=60)
        session.flush()
    monkeypatch.setenv("LIBCKPT_DAEMON_PATH", "/nonexistent/ckptd")
    monkeypatch.setenv("LIBCKPT_RUNTIME_DIR", str(runtime.parent / "other"))
    return tmp_path / "steps"


class Door:
    """A training that resumes: its step, 0 if it begins anew."""

    def __init__(self, steps, folder):
        self.steps, self.folder = steps, folder

    def end(self):
        pass


class Accelerate(Door):
    def __init__(self, *given):
        self.accelerate = pytest.importorskip("accelerate")
        super().__init__(*given)
        self._saved = None

    def _made(self, **options):
        import libckpt.accelerate

        self.accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerate.state.GradientState._reset_state()
        settings = self.accelerate.utils.ProjectConfiguration(
            project_dir=str(self.folder), automatic_checkpoint_naming=True
        )
        accelerator = self.accelerate.Accelerator(cpu=True, project_config=settings)
        model = torch.nn.Linear(2, 2)
        accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return accelerator, libckpt.accelerate.attach(accelerator, dir=self.steps, **options)

    def save(self):
        accelerator, state = self._made(job="saved")
        accelerator.save_state()
        state.settle()
        self._saved = accelerator._models[0].weight.detach().clone()

    def resume(self, job):
        accelerator, state = self._made(job=job)
        step = state.resume()  # 0 also for a folder, whose step nobody has noted.
        is_saved = self._saved is not None and torch.equal(
            accelerator._models[0].weight, self._saved
        )
        return 7 if is_saved else step


class Lightning(Door):
    def __init__(self, *given):
        self.pl = pytest.importorskip("lightning.pytorch")
        super().__init__(*given)

    def _fit(self, job, steps, resumes=None):
        import libckpt.lightning

        class Module(self.pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer, self.began = torch.nn.Linear(1, 1), None

            def on_train_start(self):
                self.began = self.global_step

            def training_step(self, batch, _):
                return self.layer(batch).square().mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        module = Module()
        files = self.pl.callbacks.ModelCheckpoint(dirpath=self.folder, every_n_train_steps=7)
        trainer = self.pl.Trainer(
            max_steps=steps, default_root_dir=self.folder, logger=False, accelerator="cpu",
            devices=1, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[files, libckpt.lightning.Callback(job=job, dir=self.steps)],
            plugins=[libckpt.lightning.CheckpointIO()],
        )  # fmt: skip
        trainer.fit(module, torch.ones(9, 1), ckpt_path=resumes)
        return module.began

    def save(self):
        self._fit("saved", 7)

    def resume(self, job):
        import libckpt.lightning

        return self._fit(job, 9, libckpt.lightning.NEWEST)


class Transformers(Door):
    def __init__(self, *given):
        self.transformers = pytest.importorskip("transformers")
        super().__init__(*given)

    def _train(self, job, steps, **options):
        import libckpt.transformers
        from small_models import Squares

        began = []

        class Began(self.transformers.TrainerCallback):
            def on_train_begin(self, args, state, control, **_):
                began.append(state.global_step)

        settings = self.transformers.TrainingArguments(
            str(self.folder), max_steps=steps, per_device_train_batch_size=1, save_steps=7,
            report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        callback = libckpt.transformers.Callback(job=job, dir=self.steps)
        trainer = self.transformers.Trainer(
            Squares(), settings, train_dataset=[{"x": torch.ones(1)}] * 9,
            callbacks=[callback, Began()],
        )  # fmt: skip
        trainer.train(**options)
        return began[0]

    def save(self):
        self._train("saved", 7)

    def resume(self, job):
        return self._train(job, 9, resume_from_checkpoint=True)


class Torchtitan(Door):
    def __init__(self, *given):
        pytest.importorskip("torchtitan")
        super().__init__(*given)
        self._managers = []

    def _made(self, job):
        from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

        import libckpt.torchtitan

        settings = default_adamw(lr=0.01)
        settings.implementation = "foreach"
        model = torch.nn.Linear(2, 2)
        optimizers = settings.build(model_parts=[model])
        config = libckpt.torchtitan.CheckpointManager.Config(
            enable=True, interval=1, folder=str(self.folder), keep_latest_k=0, job=job
        )
        self._managers.append(config.build(
            dataloader=None, model_parts=[model], optimizers=optimizers, states={}, sd_adapter=None,
            lr_schedulers=LRSchedulersContainer(optimizers, lambda step: 1.0),
        ))  # fmt: skip
        return self._managers[-1]

    def save(self):
        manager = self._made("saved")
        manager.load()
        manager.save(7)

    def resume(self, job):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LIBCKPT_DIR", str(self.steps))
            manager = self._made(job)
            return 7 if manager.load() else 0

    def end(self):
        for manager in self._managers:
            manager.close()


class EasyCkpt(Door):
    def __init__(self, *given):
        pytest.importorskip("megatron.core")
        super().__init__(*given)

    def save(self):
        from libckpt.megatron import _classic

        self.folder.mkdir()
        (self.folder / _classic.folder_of(7)).mkdir()
        (self.folder / "latest_checkpointed_iteration.txt").write_text("7")

    def resume(self, job):
        from libckpt.megatron._easy import EasyCkpt

        easy = EasyCkpt(1, 0, 0, job=job, save_dir=str(self.folder), dir=self.steps)
        easy._from_folder = lambda newest, *_: (newest, 0)  # Of Megatron's own code.
        model = torch.nn.Linear(2, 2)
        try:
            return easy.load(model, torch.optim.SGD(model.parameters(), lr=0.1), None)[0]
        finally:
            easy.abandon()


class DeepSpeed(Door):
    def __init__(self, *given):
        pytest.importorskip("deepspeed")
        super().__init__(*given)
        self._found = (None, {})

    def save(self):
        self._found = ("global_step7", {})

    def resume(self, job):
        import libckpt.deepspeed

        class Engine:
            load_checkpoint = lambda _, folder: self._found  # noqa: E731
            global_steps = 0

        with pytest.MonkeyPatch.context() as patch:
            layout = types.SimpleNamespace(rank=0, ranks=1)
            patch.setattr(libckpt.deepspeed, "problem_of", lambda _: None)
            patch.setattr(libckpt.deepspeed, "Layout", lambda _: layout)
            patch.setattr("libckpt.deepspeed._state.EngineState", lambda *_: None)
            engine = Engine()
            libckpt.deepspeed.attach(engine, job=job, dir=self.steps)
        if self._found[0] is None:
            assert libckpt.deepspeed.resume(engine) is None
        return 0 if engine.load_checkpoint(self.folder)[0] is None else 7


DOORS = [Accelerate, Lightning, Transformers, Torchtitan, EasyCkpt, DeepSpeed]


@pytest.fixture(params=DOORS)
def door(request, steps, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    made = request.param(steps, tmp_path / "folder")
    yield made
    made.end()


def test_it_does_not_begin_anew_over_what_is_stored(door):
    with pytest.raises(libckpt.Unavailable, match=REFUSED):
        door.resume(JOB)


def test_it_begins_where_the_job_has_nothing(door):
    assert door.resume("another") == 0


def test_it_loads_a_folder_of_the_frameworks_own(door):
    door.save()
    assert door.resume(JOB) == 7
