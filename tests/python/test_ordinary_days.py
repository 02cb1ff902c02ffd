"""Goal: what people use on an ordinary day comes back from memory as everything else does: scalers
of fp16 losses with the steps that they skip, schedulers that look at a metric, folders that have
the model alone.

Method: real packages on CPUs, killed and resumed, are compared with runs that nobody touched.
"""

import math

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")
pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import test_transformers as hf  # noqa: E402
from test_accelerate import leave, prepared  # noqa: E402, F401
from test_deepspeed import check_began, jobs, losses  # noqa: E402, F401
from test_ranks import said  # noqa: E402


# --- DeepSpeed in fp16, whose first steps overflow. It denies that CPUs compute in fp16.


def scales(log):
    return {int(step): (float(scale), int(skipped))
            for step, scale, skipped in said(log, 0, "scale")}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_loss_scaler_of_deepspeed_goes_on_as_it_was(jobs, stage):  # noqa: F811
    given = {"stage": stage, "dtype": "fp16", "steps": 30}
    whole = jobs.run(2, **given, job="whole", stock=True)
    expected = scales(whole)
    # Steps are skipped, also behind the first kill; with ZeRO 0 DeepSpeed's scale just grows.
    assert (expected[30][1] >= 10) == (stage > 0)
    assert len({scale for scale, _ in expected.values()}) > 5
    found, before = {}, None
    for at in (7, 20):
        log = jobs.run_killed(2, at, resume={}, **given)
        if before is not None:
            assert check_began(log, 2, before) == 7
        found |= scales(log)
        before = log
    log = jobs.run(2, resume={}, **given)
    assert check_began(log, 2, before) == 20
    assert found | scales(log) == expected


@pytest.mark.slow
def test_another_stage_takes_the_loss_scaler_along(jobs):  # noqa: F811
    given = {"dtype": "fp16", "steps": 8}
    before = jobs.run_killed(2, 7, stage=1, **given)
    log = jobs.run(1, stage=0, resume={}, **given)
    assert check_began(log, 1, before) == 7
    scale = scales(before)[7][0]
    assert scales(log)[8][0] in (scale / 2, scale, scale * 2)  # And not that of a first step.


# --- accelerate


def trained(accelerator, scheduler, steps):
    """One step for each number, which is the metric and, where it is not finite, spoils a loss."""
    (model,), (optimizer,) = accelerator._models, accelerator._optimizers
    seen = []
    for metric in steps:
        loss = model(torch.ones(3, model.in_features)).square().mean()
        accelerator.backward(loss * (metric if math.isinf(metric) else 1.0))
        optimizer.step()
        if scheduler is not None:
            scheduler.step(metric)
        optimizer.zero_grad()
        seen.append((accelerator.optimizer_step_was_skipped, optimizer.param_groups[0]["lr"],
                     accelerator.scaler.get_scale() if accelerator.scaler else None,
                     model.weight.sum().item()))  # fmt: skip
    return seen


def made(prepared, has_scaler, has_scheduler):  # noqa: F811
    """accelerate makes a scaler for GPUs only: it gets one here, before it prepares."""
    scaler = None
    if has_scaler:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    stock = accelerate.Accelerator.prepare

    def prepare(self, model, optimizer):
        self.scaler = scaler
        given = [model, optimizer]
        if has_scheduler:
            given.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1))
        return stock(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerate.Accelerator, "prepare", prepare)
        torch.manual_seed(0)
        accelerator, state = prepared()
    return accelerator, state, accelerator._schedulers[0] if has_scheduler else None


@pytest.mark.parametrize(("has_scaler", "has_scheduler"), [(True, False), (False, True)],
                         ids=["scaler", "plateau"])  # fmt: skip
def test_accelerate_goes_on_with_its_scaler_and_its_plateau(
    prepared, has_scaler, has_scheduler  # noqa: F811
):
    inf = math.inf
    steps = [3.0, inf, 2.0, 2.0, 2.0, inf, 2.0, 2.0] if has_scaler else [3.0, 2.0] + [2.5] * 6
    accelerator, state, scheduler = made(prepared, has_scaler, has_scheduler)
    assert state.resume() == 0
    seen = trained(accelerator, scheduler, steps[:3])
    assert state.capture(3)
    state._memory.session.wait(3, "committed")
    expected = seen + trained(accelerator, scheduler, steps[3:])
    assert any(skipped for skipped, *_ in expected) == has_scaler
    assert len({rate for _, rate, *_ in expected}) == (1 if has_scaler else 4)
    leave(state)
    accelerator, state, scheduler = made(prepared, has_scaler, has_scheduler)
    trained(accelerator, scheduler, steps[:1])  # The restore replaces it.
    assert state.resume() == 3
    assert trained(accelerator, scheduler, steps[3:]) == expected[3:]


# --- Transformers

PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 4,
           "save_strategy": "no", "metric_for_best_model": "loss",
           "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 0.5}}  # fmt: skip


@pytest.mark.slow
def test_a_trainer_whose_rate_follows_a_metric_ends_as_if_it_had_not_been_killed(trainer, tmp_path):
    expected = hf.results(hf.run(trainer, tmp_path / "stock", "stock", **PLATEAU).finish())
    output = tmp_path / "output"
    assert hf.kill_when_held(hf.run(trainer, output, hold=13, **PLATEAU)) == 13
    log = hf.run(trainer, output, resume=True, **PLATEAU).finish()
    assert hf.first_step(log) == 14
    assert hf.results(log) == expected


@pytest.mark.slow
def test_memory_is_better_than_a_newer_folder_that_has_the_model_alone(
    trainer, tmp_path, programs
):
    options = {"save_only_model": True}
    expected = hf.results(hf.run(trainer, tmp_path / "stock", "stock", **options).finish())
    output = tmp_path / "output"
    assert hf.kill_when_held(hf.run(trainer, output, hold=12, **options)) == 12
    hf.kill_when_held(hf.run(trainer, output, "stock", resume=True, hold=17, **options))
    assert hf.folders(output) == [10, 15]
    log = hf.run(trainer, output, resume=True, hold=22, **options)
    assert hf.kill_when_held(log) == 22
    assert hf.first_step(log.log.read_text()) == 13
    assert "the newest folder is 15, which has the model alone" in log.log.read_text()
    log = hf.run(trainer, output, resume=True, **options).finish()
    assert hf.first_step(log) == 23
    assert hf.results(log) == expected
