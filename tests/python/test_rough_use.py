"""Goal: doors that are used in several unusual ways at once, and killed, still end as the framework
would have, or go on from memory where the framework itself would not.

Method: the trainers of the other tests with what people combine: gradients that are accumulated,
evaluations in between, one folder that stays, workers that load data, other batch sizes, an end
that comes early, a program without a file.
"""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

NOTEBOOK = """
import torch, libckpt
from torch.utils.data import DataLoader
def cell(steps):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    items = {"model": model, "optimizer": optimizer, "rng": libckpt.RNG()}
    session = libckpt.init("notebook").guard(optimizer)
    begin = session.restore_or(items, default=0)
    print("began at", begin, model.weight.sum().item(), flush=True)
    for step, batch in zip(range(begin + 1, begin + steps + 1), DataLoader(torch.ones(64, 8), 4,
                                                                           num_workers=2)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        session.save(step, items, wait=60).captured.result(60)
    print("made", step, model.weight.sum().item(), flush=True)
    return session
session = cell(3)
try:
    cell(3)  # As somebody who runs a cell twice.
except libckpt.InvalidArgument as error:
    print("refused", error)
session.abandon()
cell(2)
"""


@pytest.fixture
def hf():
    pytest.importorskip("transformers")
    import test_transformers

    return test_transformers


def test_a_trainer_accumulates_evaluates_rotates_and_loads_by_workers(trainer, tmp_path, hf):
    """Two ranks, killed twice, in the middle of what an update adds up."""
    options = {"ranks": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3,
               "eval_strategy": "steps", "eval_steps": 2, "save_steps": 4, "max_steps": 16,
               "save_total_limit": 1, "dataloader_num_workers": 2}  # fmt: skip
    whole = hf.run(trainer, tmp_path / "stock", "stock", **options).finish()
    output = tmp_path / "output"
    for step in (5, 10):
        hf.kill_when_held(hf.run(trainer, output, resume=True, hold=step, **options))
    said = hf.run(trainer, output, resume=True, **options).finish()
    assert hf.first_step(said) == 11
    assert hf.results(said) == hf.results(whole)
    assert hf.folders(output) == [16]


def test_a_trainer_goes_on_with_another_batch_size(trainer, tmp_path, hf):
    """With as many texts in each update, the number of updates goes on."""
    output = tmp_path / "output"
    assert hf.kill_when_held(hf.run(trainer, output, max_steps=12, hold=8)) == 8
    said = hf.run(trainer, output, resume=True, max_steps=12, per_device_train_batch_size=2,
                  gradient_accumulation_steps=2).finish()  # fmt: skip
    assert "from own memory" in said
    assert hf.first_step(said) == 9
    assert "made 12\n" in said
    assert hf.folders(output)[-1] == 12


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop_of_accelerate_goes_on_behind_its_last_update(trainer, tmp_path, ranks):
    """Killed between two updates, whose gradients it adds up from three batches; the last batch of
    an epoch, of 14 or 7, ends one, too."""
    acc = pytest.importorskip("test_accelerate")
    options = {"ranks": ranks, "steps": 20, "accumulate": 3, "every": 100, "waits": 60}
    whole = acc.run(trainer, tmp_path / "stock", "stock", **options).finish()
    acc.kill_when_held(acc.run(trainer, tmp_path / "project", hold=8, **options), ranks)
    last = acc.run(trainer, tmp_path / "project", **options).finish()
    assert {acc.began(last, rank) for rank in range(ranks)} <= ({3, 6} if ranks == 1 else {3, 6, 7})
    assert acc.results(last, ranks) == acc.results(whole, ranks)
    assert acc.made(last).items() <= acc.made(whole).items()


def test_cells_of_a_notebook_that_run_again_go_on_from_memory(runtime, tmp_path):
    done = subprocess.run([sys.executable, "-"], input=NOTEBOOK, cwd=tmp_path, text=True,
                          capture_output=True, timeout=600, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    began, made = ([line[-2:] for line in lines if line[0] == word] for word in ("began", "made"))
    assert "this process has a session of it already" in done.stdout
    assert [step for step, _ in began] == ["0", "3"]
    assert began[1] == made[0]
    assert made[1][0] == "5"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_memory_of_a_trainer_with_workers_is_free_at_once(trainer, tmp_path, hf, workers):
    """Workers outlive the trainer that is killed for a moment, and hold nothing of its memory."""
    output = tmp_path / "output"
    for step in (3, 6, 9):
        process = hf.run(trainer, output, resume=True, dataloader_num_workers=workers,
                         dataloader_persistent_workers=workers > 0, hold=step)  # fmt: skip
        assert hf.kill_when_held(process) == step
    said = hf.run(trainer, output, resume=True, dataloader_num_workers=workers).finish()
    assert hf.first_step(said) == 10
    assert "from own memory" in said
