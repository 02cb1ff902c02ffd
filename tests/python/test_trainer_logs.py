"""Goal: the log that a Trainer goes on with has each entry once, whatever it logs and when.

Method: each step of a training is looked at when it is captured: its log must be what the log of
the whole training has up to that step, and a restore must bring the sums that the next entry adds
up as they were then, though training changes them at once. A training that had ended and is started
again does what it does with stock Transformers.
"""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import libckpt.transformers  # noqa: E402
from test_transformers import first_step, results, run  # noqa: E402

STEPS = 8
SECONDS = 60


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return {"loss": (self.weight * x).square().mean()}


class Captures:
    """Keeps what is captured, and the Trainer's sums then; nothing is skipped."""

    def __init__(self, trainer, session):
        self._trainer, self._save = trainer, session.save
        self.logs, self.sums = {}, {}
        session.save_checkpoint_if_needed = session.save = self.save

    def save(self, step, items, wait=0, **options):
        items = items()
        self.logs[step] = json.loads(items["state"])["log_history"]
        self.sums[step] = self._trainer._tr_loss.item(), self._trainer._globalstep_last_logged
        return self._save(step, items, SECONDS, **options)


def make_trainer(directory, **options):
    settings = {"max_steps": STEPS, "per_device_train_batch_size": 2, "save_strategy": "no",
                **options}  # fmt: skip
    trainer = transformers.Trainer(
        model=Model(),
        args=transformers.TrainingArguments(
            directory, report_to=[], use_cpu=True, disable_tqdm=True, label_names=["x"], **settings
        ),
        train_dataset=[{"x": torch.full((3,), float(i))} for i in range(6)],
        eval_dataset=[{"x": torch.ones(3)}],
    )  # fmt: skip
    return libckpt.transformers.TrainerWrapper(trainer, raise_on_error=True)


def session_of(trainer):
    (callback,) = [each for each in trainer.callback_handler.callbacks
                   if isinstance(each, libckpt.transformers.Callback)]  # fmt: skip
    if callback._memory.session is None:
        callback._memory._open()  # As a training does when it begins.
    return callback._memory.session


@pytest.mark.parametrize(
    "options",
    [
        {"logging_steps": 1},
        {"logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2},
        {"logging_strategy": "epoch", "eval_strategy": "epoch", "eval_on_start": True},
        {"logging_steps": 2, "gradient_accumulation_steps": 2, "save_strategy": "epoch"},
    ],
    ids=["each step", "evaluations", "epochs", "accumulation"],
)
def test_a_captured_step_has_the_log_up_to_it(runtime, tmp_path, options):
    trainer = make_trainer(tmp_path, **options)
    captures = Captures(trainer, session_of(trainer))
    trainer.train()
    whole = trainer.state.log_history
    assert sorted(captures.logs) == list(range(1, STEPS + 1))
    assert "train_runtime" in whole.pop()  # It is of the whole training, and not of its last step.
    for step, log in captures.logs.items():
        assert log == [entry for entry in whole if entry["step"] <= step]
    session_of(trainer).close()


def test_the_sums_of_the_next_entry_are_those_of_the_captured_step(runtime, tmp_path):
    """The loss of the next step is added in place as soon as a save has returned."""
    trainer = make_trainer(tmp_path, logging_steps=3)
    session = session_of(trainer)
    captures = Captures(trainer, session)
    trainer.train()
    session.wait(STEPS, "committed", SECONDS)
    sums = session.restore(step=STEPS).items["totals"]
    assert (sums["loss"].item(), sums["last_logged"]) == captures.sums[STEPS]
    assert captures.sums[STEPS][0] > 0 and captures.sums[STEPS][1] == 6
    session.close()


def test_a_training_that_had_ended_makes_one_step_more_as_with_stock_transformers(
    trainer, tmp_path
):
    """Its learning rate is zero by then, so that the log alone shows it. So it does where memory
    alone has the last step."""
    ended, again = {}, {}
    kinds = {"stock": {}, "wrapper": {}, "callback": {"save_strategy": "no"}}
    for kind, options in kinds.items():
        options = {"max_steps": 5, **options}
        ended[kind] = run(trainer, tmp_path / kind, kind, **options).finish()
        again[kind] = run(trainer, tmp_path / kind, kind, resume=True, **options).finish()
        assert first_step(again[kind]) == 6
    for kind in ("wrapper", "callback"):
        assert results(ended[kind]) == results(ended["stock"])
        assert results(again[kind]) == results(again["stock"])
    (one, weights), (other, same) = results(ended["stock"]), results(again["stock"])
    assert one != other and weights == same
