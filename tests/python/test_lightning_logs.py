"""Goal: a fit that is killed in a validation makes it when it goes on, so that its log has what the
log of a fit has that nobody kills; and steps are captured wherever they are validated.

Method: fits in this process with a logger that keeps its lines; an exception ends one of them, and
leaves memory as a death would. Each capture waits for a Slot, so that none is skipped.
"""

import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers.logger import Logger  # noqa: E402

import libckpt.lightning  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402
from libckpt.lightning import _unvalidated  # noqa: E402

STEPS, BATCHES, SECONDS = 10, 6, 60
OF_SESSION = ("dir", "save_mem_interval")


class Lines(Logger):
    """Keeps all lines, with their steps."""

    name, version = "lines", 0
    experiment = property(lambda self: None)

    def __init__(self):
        super().__init__()
        self.said = set()

    def log_hyperparams(self, *arguments, **options):
        pass

    def log_metrics(self, metrics, step):
        self.said |= {(step, name, value) for name, value in metrics.items()}


class Loader:
    """It goes on where it was."""

    def __init__(self):
        self.batch = 0

    def __len__(self):
        return BATCHES

    def __iter__(self):
        begin, self.batch = self.batch % BATCHES, self.batch % BATCHES
        for number in range(begin, BATCHES):
            self.batch = number + 1
            yield torch.full((2, 4), 1.0 + number)

    def state_dict(self):
        return {"batch": self.batch}

    def load_state_dict(self, state):
        self.batch = state["batch"]


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.5))

    def training_step(self, batch, _):
        loss = self.layers(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("score", self.layers(batch).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Killed(Exception):
    pass


class Kill(pl.Callback):
    """At that moment behind that step, once memory has what was captured before."""

    def __init__(self, memory, step, moment):
        self.memory, self.step = memory, step
        setattr(self, moment, self.kill)

    def kill(self, trainer, *_):
        if trainer.global_step == self.step and not trainer.sanity_checking:
            session = self.memory.session
            session.finish_capture()
            session.wait(self.memory._captured, "committed", SECONDS)
            raise Killed


def never_skipping(memory):
    """Each of its captures waits for a Slot."""
    stock = memory._open

    def open_session(trainer):
        stock(trainer)
        session = memory.session
        memory.captured = []

        interval = memory._options.get("save_mem_interval", 1)

        def save(step, items, wait=0, **options):
            memory.captured.append(step)
            return type(session).save(session, step, items, SECONDS, **options)

        def save_if_needed(step, items, **options):
            return save(step, items, **options) if step % interval == 0 else None

        session.save, session.save_checkpoint_if_needed = save, save_if_needed

    memory._open = open_session
    return memory


def trainer_of(root, lines, *callbacks, max_steps=STEPS, sanity=0, **options):
    warnings.simplefilter("ignore")
    return pl.Trainer(
        max_steps=max_steps, max_epochs=-1, default_root_dir=root, accelerator="cpu", logger=lines,
        log_every_n_steps=1, plugins=[libckpt.lightning.CheckpointIO()], callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=sanity,
        **options,
    )  # fmt: skip


def validated():
    return torch.utils.data.DataLoader(torch.ones(2, 4))


def fit(root, lines, kill=None, files=None, **options):
    """Its weights at the end, and the steps that were captured."""
    of_session = {name: options.pop(name) for name in OF_SESSION if name in options}
    memory = never_skipping(libckpt.lightning.Callback(**of_session))
    more = [*([Kill(memory, *kill)] if kill else []), *([files] if files else [])]
    trainer = trainer_of(root, lines, memory, *more, **options)
    torch.manual_seed(5)
    model = Model()
    with contextlib.suppress(Killed):
        trainer.fit(model, Loader(), validated(), ckpt_path=libckpt.lightning.NEWEST)
    return [part.detach().clone() for part in model.parameters()], memory.captured


def lines_of(lines, *names):
    return {line for line in lines.said if line[1] in names}


@pytest.mark.parametrize("moment", ["on_validation_start", "on_validation_end"])
@pytest.mark.parametrize(
    ("options", "step"),
    [({}, BATCHES), ({"val_check_interval": 3}, 3), ({"accumulate_grad_batches": 2}, 3)],
    ids=["of an epoch", "within one", "accumulation"],
)
def test_a_fit_that_is_killed_in_a_validation_makes_it_again(
    runtime, tmp_path, options, step, moment
):
    whole, killed = Lines(), Lines()
    expected, _ = fit(tmp_path / "whole", whole, **options)
    fit(tmp_path / "root", killed, (step, moment), **options)
    found, captured = fit(tmp_path / "root", killed, **options)
    assert captured[0] == step  # It began with the step before.
    assert all(map(torch.equal, found, expected))
    assert lines_of(killed, "loss", "score") == lines_of(whole, "loss", "score")


def test_a_step_whose_file_is_saved_behind_the_validation_is_captured_there(runtime, tmp_path):
    """Else the file would be newer than memory, and has no random generators."""
    whole, killed, options = Lines(), Lines(), {"val_check_interval": 3}
    expected, _ = fit(tmp_path / "whole", whole, **options)

    def files():
        return ModelCheckpoint(tmp_path / "files", monitor="score", save_top_k=-1)

    _, captured = fit(tmp_path / "root", killed, (3, "on_train_batch_start"), files(), **options)
    assert captured == [1, 2, 3]
    found, captured = fit(tmp_path / "root", killed, files=files(), **options)
    assert captured == list(range(4, STEPS + 1))
    assert all(map(torch.equal, found, expected))
    assert lines_of(killed, "loss", "score") == lines_of(whole, "loss", "score")


@pytest.mark.parametrize("session", [{}, {"save_mem_interval": 2}, {"dir": "dir"}],
                         ids=["each step", "each second step", "storage"])  # fmt: skip
def test_nor_is_it_left_out_where_its_step_has_a_file_or_may_go_to_storage(
    runtime, tmp_path, session
):
    """Memory may lack the step before; and a file, which is newer, is not resumed from."""
    whole, killed, options = Lines(), Lines(), {"val_check_interval": 4}
    expected, _ = fit(tmp_path / "whole", whole, **options)
    if "dir" in session:
        session = {"dir": tmp_path / "dir"}

    def files():
        return ModelCheckpoint(tmp_path / "files", every_n_train_steps=4, save_top_k=-1)

    options |= session
    _, captured = fit(tmp_path / "root", killed, (4, "on_validation_end"), files(), **options)
    assert captured[-1] < 4
    _publish_queue.settle(wait=True)
    assert len(list((tmp_path / "files").glob("*step=4.ckpt"))) == 1
    found, captured = fit(tmp_path / "root", killed, files=files(), **options)
    assert 4 in captured
    assert all(map(torch.equal, found, expected))
    assert lines_of(killed, "loss", "score") == lines_of(whole, "loss", "score")


def test_a_file_is_resumed_from_where_memory_is_gone_or_the_validation_was_made(tmp_path):
    path = tmp_path / ".libckpt" / "lightning-unvalidated.json"
    _unvalidated.note(tmp_path, 4, 3)
    assert [_unvalidated.memory_step(tmp_path, step) for step in (3, 4)] == [None, 3]
    path.write_text("[")
    assert _unvalidated.memory_step(tmp_path, 4) is None
    _unvalidated.note(tmp_path, 4, None)  # Behind the validation, or where none follows.
    assert not path.exists()
    assert _unvalidated.memory_step(tmp_path, 4) is None


@pytest.mark.parametrize("dir", [None, "dir"])
def test_where_all_steps_are_validated_each_one_is_captured(runtime, tmp_path, dir):
    of_session = {"dir": tmp_path / dir} if dir else {}
    _, captured = fit(tmp_path, Lines(), val_check_interval=1, **of_session)
    assert captured == list(range(1, STEPS + 1))


def test_a_fit_that_a_validation_has_stopped_is_stopped_by_it_again(runtime, tmp_path):
    def stopping():
        return EarlyStopping("score", stopping_threshold=-1e9, mode="max")  # At the first one.

    for _ in range(2):
        _, captured = fit(
            tmp_path, Lines(), (4, "on_train_end"), files=stopping(), val_check_interval=4
        )
    assert captured == []  # It made step 4 again, and stopped.


def test_a_second_fit_captures_nothing_before_its_first_step(runtime, tmp_path):
    """Its sanity check is a validation, and ModelCheckpoint knows the last step of the first."""
    files = ModelCheckpoint(tmp_path / "files", every_n_train_steps=STEPS)
    memory = never_skipping(libckpt.lightning.Callback())
    for steps in (STEPS, STEPS + 2):
        trainer = trainer_of(tmp_path, Lines(), memory, files, max_steps=steps, sanity=1)
        trainer.fit(Model(), Loader(), validated())
        assert memory.captured == list(range(1, steps + 1))
