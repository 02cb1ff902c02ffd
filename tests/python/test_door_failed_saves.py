"""Goal: where a framework's state cannot be had, the session learns of it: the step is given up and
counted, `degraded` says so until a save succeeds, and close() knows of it.

Method: each door trains two steps whose state raises, and one whose state is there; the session is
asked in between. test_failed_saves.py has the same of a session that is called without a door.
"""

import types

import pytest

import libckpt

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from test_dcp import alone  # noqa: E402, F401


class Broken(RuntimeError):
    pass


class Door:
    """Makes the steps of a training, of which the state is broken or whole."""

    is_broken = True

    def __init__(self, tmp_path, patch):
        self.folder, self.patch = tmp_path / "folder", patch

    def breaks(self):
        if self.is_broken:
            raise Broken("no more state")

    def patched(self, owner, name):
        stock = getattr(owner, name)
        self.patch.setattr(owner, name, lambda *given: (self.breaks(), stock(*given))[1])


class DeepSpeed(Door):
    def open(self):
        pytest.importorskip("deepspeed")
        from libckpt.deepspeed import _memory

        def items(state):
            self.breaks()
            return {"value": 1}

        self.patch.setattr(_memory._state.EngineState, "items", items)
        layout = types.SimpleNamespace(rank=0, ranks=1, arrays=list)
        self._engine = types.SimpleNamespace(global_steps=0)
        self._memory = _memory.Memory(self._engine, layout, "job", (None, None), {})
        return self._memory.session

    def step(self, number):
        self._engine.global_steps = number
        self._memory.capture()


class Megatron(Door):
    def open(self):
        pytest.importorskip("megatron.core")
        from libckpt.megatron import _memory

        pieces = types.SimpleNamespace(geometry=lambda: "{}", parts=[], modules={}, arrays=list)
        self.patch.setattr(_memory.Memory, "pieces", lambda *_: pieces)
        self.patched(_memory._parallel, "place")
        self._memory = _memory.Memory("job", {})
        return self._memory.session

    def step(self, number):
        self._memory.save(number, ([], None, None), {})


class LocalManager(Door):
    def open(self):
        pytest.importorskip("megatron.core")
        from libckpt.megatron._local_manager import LocalCheckpointManager

        self._manager = LocalCheckpointManager(self.folder)
        return self._manager.session

    def pop_tensors(self):
        self.breaks()
        return [torch.ones(2)]

    def insert_tensors(self, tensors):
        pass

    def __reduce__(self):
        return dict, ()

    def step(self, number):
        self._manager.save(self, number)


class Transformers(Door):
    def open(self):
        transformers = pytest.importorskip("transformers")
        from libckpt.transformers import _memory

        self.patched(_memory, "state_json")
        settings = transformers.TrainingArguments(str(self.folder), report_to=[], use_cpu=True)
        self._trainer = transformers.Trainer(torch.nn.Linear(2, 2), settings)
        self._trainer.create_optimizer_and_scheduler(9)
        self._memory = _memory.TrainerMemory(self._trainer, "job", True, {})
        self._memory.begin()
        return self._memory.session

    def step(self, number):
        self._trainer.state.global_step = number
        self._memory.capture()


class Accelerate(Door):
    def open(self):
        accelerate = pytest.importorskip("accelerate")
        from libckpt.accelerate import _memory

        self.patch.setenv("ACCELERATE_USE_CPU", "true")
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
        accelerator = accelerate.Accelerator(cpu=True)
        model = torch.nn.Linear(2, 2)
        accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        accelerator.register_for_checkpointing(self)
        self._memory = _memory.Memory(accelerator, "job", True, {})
        return self._memory.session

    def state_dict(self):
        self.breaks()
        return {}

    def load_state_dict(self, state):
        pass

    def step(self, number):
        self._memory.capture(number)


class Torchtitan(Door):
    def open(self):
        titan = pytest.importorskip("libckpt.torchtitan", exc_type=ImportError)
        manager = titan.CheckpointManager
        self._manager = manager.__new__(manager)
        self._manager._session = libckpt.init("job")
        self._manager.load_only = False
        self.patch.setattr(manager, "_items", lambda _: (self.breaks(), {"x": torch.ones(2)})[1])
        self.patch.setattr(manager.__mro__[1], "_save", lambda *_: None)
        return self._manager._session

    def step(self, number):
        self._manager._save(number)


DOORS = [DeepSpeed, Megatron, LocalManager, Transformers, Accelerate, Torchtitan]


@pytest.fixture(params=DOORS)
def door(request, runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("LIBCKPT_DIR", str(tmp_path / "dir"))
    return request.param(tmp_path, monkeypatch)


def test_a_state_that_cannot_be_had_is_a_save_that_failed(door):
    session = door.open()
    try:
        for number in (1, 2):
            door.step(number)
        counts = session.counts()
        assert counts["failed"] == 2
        assert counts["degraded"] == "saves fail: no more state"
        with pytest.raises(libckpt.NotFound, match="its save failed: no more state"):
            session.wait(2, "captured")
        door.is_broken = False
        door.step(3)
        session.wait(3, "committed")
        assert session.counts()["degraded"] == ""
        door.is_broken = True
    finally:
        session.abandon()


def test_a_state_that_transformers_cannot_give_at_the_beginning_costs_no_later_step(
    runtime, tmp_path, monkeypatch
):
    """The training begins anew all the same, where the job has an earlier step."""
    monkeypatch.setenv("LIBCKPT_DIR", str(tmp_path / "dir"))
    with libckpt.init("job", raise_on_error=True) as earlier:
        earlier.save(5, {"x": torch.ones(2)}).durable.result(60)
    door = Transformers(tmp_path, monkeypatch)
    session = door.open()
    try:
        door.is_broken = False
        door.step(1)
        session.wait(1, "committed")
        assert session.counts()["failed"] == 0
    finally:
        session.abandon()


def test_megatron_copies_nothing_once_the_ranks_agreed_that_they_cannot(
    runtime, tmp_path, monkeypatch, caplog
):
    door = Megatron(tmp_path, monkeypatch)
    door.is_broken = False
    session = door.open()
    try:
        door._memory._give_up(libckpt.Unsupported("rank 1 has no such model"))
        for number in (1, 2):
            door.step(number)
        counts = session.counts()
        assert (counts["failed"], counts["captured"]) == (2, None)
        assert "rank 1 has no such model" in counts["degraded"]
        assert "call load_checkpoint" not in caplog.text
    finally:
        session.abandon()


def test_a_training_of_which_a_door_saved_nothing_is_no_success(door):
    session = door.open()
    door.step(1)
    with pytest.raises(libckpt.NotFound, match="1 steps were due, none .*no more state"):
        session.close()


def test_a_state_that_lightning_cannot_give_does_not_end_the_training(runtime, tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    import libckpt.lightning

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Other(pl.Callback):
        counts = ()

        def state_dict(self):
            raise Broken("no more state")

        def on_train_end(self, trainer, _):
            Other.counts = callback.session.counts()

    callback = libckpt.lightning.Callback()
    trainer = pl.Trainer(
        max_steps=3, default_root_dir=tmp_path, logger=False, accelerator="cpu", devices=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[Other(), callback],
    )  # fmt: skip
    trainer.fit(Module(), torch.ones(5, 1))
    assert trainer.global_step == 3
    assert Other.counts["failed"] == 3
    assert Other.counts["degraded"] == "saves fail: no more state"


def test_a_part_that_dcp_cannot_capture_is_a_save_that_failed(alone, runtime, caplog):  # noqa: F811
    storage = alone("ckpt://job")
    state = {"a": torch.ones(2, dtype=torch.complex128)}
    dcp.save(state, checkpoint_id="ckpt://job/step-1", storage_writer=storage)
    session = storage.session()
    try:
        assert session.counts()["failed"] == 1
        with pytest.raises(libckpt.NotFound, match="its save failed: .*complex128"):
            session.wait(1, "captured")
        assert len([each for each in caplog.messages if "complex128" in each]) == 1
    finally:
        session.abandon()
