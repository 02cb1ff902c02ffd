"""Goal: an evaluation, made as the training is and of the same directory, does not take the place
of the training that runs; a cell of a notebook that runs again does.

Method: the test trains by a session of the job; the evaluation runs in a process of its own. Two
Accelerators of one process stand for the cells.
"""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

TRANSFORMERS = """
import sys, torch, transformers, libckpt.transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}
settings = transformers.TrainingArguments(sys.argv[1], report_to=[], use_cpu=True,
                                          disable_tqdm=True, label_names=["x"])
trainer = transformers.Trainer(Model(), settings, eval_dataset=[{"x": torch.ones(1)}] * 2)
trainer = libckpt.transformers.TrainerWrapper(trainer, job="job")
print("evaluated", "eval_loss" in trainer.evaluate())
"""

ACCELERATE = """
import sys, torch, accelerate, libckpt.accelerate
settings = accelerate.utils.ProjectConfiguration(sys.argv[1], automatic_checkpoint_naming=True)
accelerator = accelerate.Accelerator(cpu=True, project_config=settings)
model = torch.nn.Linear(1, 1)
accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
state = libckpt.accelerate.attach(accelerator, job="job")
accelerator.load_state(sys.argv[1] + "/checkpoints/checkpoint_0")
state.finish_capture()
accelerator.end_training()
print("evaluated", True)
"""


def evaluate(script, *given):
    done = subprocess.run([sys.executable, "-c", script, *map(str, given)], capture_output=True,
                          text=True, timeout=180, check=False)  # fmt: skip
    assert "evaluated True" in done.stdout, done.stderr[-3000:]
    return done.stderr


def check_goes_on(training, ckpt, logged):
    assert "takes the place" not in logged
    assert training.save(2, {"x": torch.ones(2)}, wait=60)
    training.wait(2, "captured")
    assert "taken over" not in ckpt("status")


@pytest.fixture
def training(job):
    session = job("job")
    session.restore_or({"x": torch.zeros(2)})
    assert session.save(1, {"x": torch.zeros(2)}, wait=60)
    session.wait(1, "committed")
    return session


def test_a_trainer_that_evaluates_leaves_the_job_to_the_training(training, ckpt, tmp_path):
    pytest.importorskip("transformers")
    check_goes_on(training, ckpt, evaluate(TRANSFORMERS, tmp_path / "output"))


def accelerator_of(project):
    accelerate = pytest.importorskip("accelerate")
    import libckpt.accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    settings = accelerate.utils.ProjectConfiguration(
        str(project), automatic_checkpoint_naming=True
    )
    accelerator = accelerate.Accelerator(cpu=True, project_config=settings)
    model = torch.nn.Linear(1, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return accelerator


def test_an_accelerator_that_loads_a_folder_leaves_the_job_to_the_training(
    training, ckpt, tmp_path, monkeypatch
):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    import libckpt.accelerate

    accelerator = accelerator_of(tmp_path)
    state = libckpt.accelerate.attach(accelerator, job="other")
    accelerator.save_state()
    state.settle()
    check_goes_on(training, ckpt, evaluate(ACCELERATE, tmp_path))
    accelerator.save_state()  # The folders are those of this process, too.
    state.settle()
    assert (tmp_path / "checkpoints" / "checkpoint_1").is_dir()


def test_a_training_that_goes_on_from_a_folder_replaces_what_memory_has(
    runtime, tmp_path, monkeypatch, caplog
):
    """Memory is asked by the first capture, and not by the load before it."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    import libckpt.accelerate

    accelerator = accelerator_of(tmp_path)
    state = libckpt.accelerate.attach(accelerator, job="folder")
    accelerator.save_state()
    state.settle()
    assert state.capture(7)
    state._memory.session.wait(7, "committed")
    again = accelerator_of(tmp_path)
    other = libckpt.accelerate.attach(again, job="folder")
    again.load_state(str(tmp_path / "checkpoints" / "checkpoint_0"))
    assert other.capture(1)
    other._memory.session.wait(1, "committed")
    other._memory.session.abandon()


def test_the_accelerator_of_a_cell_that_runs_again_takes_the_job_over(
    runtime, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    import libckpt.accelerate

    first = libckpt.accelerate.attach(accelerator_of(tmp_path), job="cell")
    assert first.resume() == 0
    assert first.capture(1)
    first._memory.session.wait(1, "committed")
    second = libckpt.accelerate.attach(accelerator_of(tmp_path), job="cell")
    assert second.resume() == 1
    assert "job cell was attached to another Accelerator of this process" in caplog.text
    assert second.capture(2)
    assert first.capture(2).outcome == "skipped_unavailable"
    second._memory.session.wait(2, "committed")
    assert first.resume() == 2  # The one that resumes last has it.
    first._memory.session.abandon()


def test_an_accelerator_is_attached_once_until_its_training_is_over(
    runtime, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    import libckpt.accelerate

    accelerator = accelerator_of(tmp_path)
    state = libckpt.accelerate.attach(accelerator, job="twice")
    assert libckpt.accelerate.attach(accelerator, job="twice") is state
    assert "the Accelerator is attached already" in caplog.text
    state.resume()
    accelerator.end_training()
    other = libckpt.accelerate.attach(accelerator, job="twice")
    assert other is not state and other.resume() == 0
    other._memory.session.abandon()
