"""Goal: whoever writes the model between two steps of a Trainer can have whole captures of it.

Method: a callback swaps other weights in through `.data`, right after a capture began, as for an
evaluation with an average of the weights; what memory holds of that step must be the model's own.
"""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import libckpt  # noqa: E402
import libckpt.transformers  # noqa: E402

SIZE = 16 << 20  # Elements: a copy takes long enough for a swap in its middle.
SECONDS = 60
STEP = 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SIZE))

    def forward(self, x, labels=None):
        return {"loss": (self.weight[:3] * x).sum()}


class Swap(transformers.TrainerCallback):
    """Swaps other weights in, and out again, when the capture of a step has begun."""

    def __init__(self, before, is_running):
        self.before, self.is_running = before, is_running
        self.own = None

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step == STEP:
            self.own = model.weight.detach().clone()

    def on_step_begin(self, args, state, control, model=None, **_):
        if state.global_step == STEP:
            self.before()
            assert not self.is_running()
            model.weight.data.fill_(7.0)
            model.weight.data.copy_(self.own)


def train(directory, swap=None, **options):
    """The trained model, and the session that captured it."""
    trainer = transformers.Trainer(
        model=Model(),
        args=transformers.TrainingArguments(
            output_dir=directory, max_steps=STEP + 1, use_cpu=True, report_to=[],
            save_strategy="no", disable_tqdm=True, per_device_train_batch_size=1, optim="sgd",
        ),
        train_dataset=[{"x": torch.ones(3), "labels": torch.ones(1)}] * 8,
    )  # fmt: skip
    libckpt.transformers.TrainerWrapper(
        trainer, save_mem_interval=STEP, raise_on_error=True, **options
    )
    if swap is not None:
        trainer.add_callback(swap(trainer))
    trainer.train()
    return trainer, session_of(trainer)


def session_of(trainer):
    (callback,) = [
        each for each in trainer.callback_handler.callbacks
        if isinstance(each, libckpt.transformers.Callback)
    ]  # fmt: skip
    if callback._memory.session is None:
        callback._memory._open()  # As a training does when it begins.
    return callback._memory.session


@pytest.mark.parametrize("overlap", [True, False])
def test_weights_that_are_swapped_in_are_not_what_is_captured(runtime, tmp_path, overlap):
    swaps = []

    def swap(trainer):
        finish = (lambda: libckpt.transformers.finish_capture(trainer)) if overlap else lambda: None
        mutations = session_of(trainer)._tensors.mutations
        session_of(trainer).save = lambda *_, **__: None  # The last step would take its place.
        swaps.append(Swap(finish, lambda: mutations.running() is not None))
        return swaps[0]

    trainer, session = train(tmp_path, swap, overlap=overlap)
    assert bool(session._tensors.guarded_names()) == overlap
    session.wait(STEP, "committed", SECONDS)
    captured = session.restore(step=STEP).items["model"]["weight"]
    assert torch.equal(captured, swaps[0].own)
    assert not torch.equal(captured, trainer.model.weight)  # Which was trained on since.
    session.close()


def test_without_a_capture_there_is_nothing_to_finish(runtime, tmp_path):
    libckpt.transformers.Callback().finish_capture()
    trainer = transformers.Trainer(
        model=torch.nn.Linear(2, 2),
        args=transformers.TrainingArguments(output_dir=tmp_path, use_cpu=True, report_to=[]),
    )
    libckpt.transformers.finish_capture(trainer)
    assert not runtime.exists()


def test_a_callback_that_finds_no_trainer_says_so(runtime, tmp_path):
    callback = libckpt.transformers.Callback()
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    with pytest.raises(libckpt.InvalidArgument, match="cannot find the Trainer"):
        callback.on_train_begin(transformers.TrainingArguments(tmp_path), state, control)
    assert not runtime.exists()
