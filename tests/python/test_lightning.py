"""Goal: a fit of Lightning that is killed goes on as if it had not been.

Method: a small model with dropout and a scheduler is fitted with the installed Lightning, by one
rank and by ranks over gloo; it is killed, resumed from memory and from files, and compared step by
step with an uninterrupted fit of stock Lightning. Stock Lightning loads the files on storage.
"""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import unittest.mock

import pytest

torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch")

import libckpt  # noqa: E402
import libckpt.lightning  # noqa: E402
from libckpt.core import _resuming  # noqa: E402
from libckpt.core.files import _disk, _publish_queue  # noqa: E402
from libckpt.lightning import _callback, _checkpoint_io, _files  # noqa: E402


def run(trainer, root, kind="libckpt", **options):
    return trainer("fit.py", str(root), kind, json.dumps(options))


def said(log, rank, word):
    return re.findall(rf"^r{rank} {word} (.*)$", log, re.M)


def made(log, rank=0):
    """By step, its losses: of several batches where gradients are accumulated."""
    found = {}
    for step, loss in map(str.split, said(log, rank, "made")):
        found.setdefault(int(step), []).append(float(loss))
    return found


def check_ends_alike(log, whole, ranks=1):
    for rank in range(ranks):
        assert said(log, rank, "weights") == said(whole, rank, "weights") != []
        begun, expected = int(said(log, rank, "began")[0]), made(whole, rank)
        found = {step: losses for step, losses in made(log, rank).items() if step > begun}
        assert found == {step: expected[step] for step in expected if step > begun}


def files(root):
    return sorted(path.name for path in (root / "files").glob("*.ckpt"))


def held(log, ranks):
    """The newest step that all ranks had in memory then."""
    found = [said(log, rank, "held")[0] for rank in range(ranks)]
    return min(0 if step == "None" else int(step) for step in found)


def kill_when_held(process, ranks=1):
    for rank in range(ranks):
        process.wait_until_said(f"r{rank} held ")
    process.kill()
    return process.log.read_text()


@pytest.mark.parametrize(
    "ranks, holds, options",
    [
        # 18: at the end of an epoch. test_killed_doors.py has one rank in the quick form.
        pytest.param(1, (6, 18), {}, marks=pytest.mark.slow),
        pytest.param(1, (4, 9), {"accumulate": 3, "steps": 14}, marks=pytest.mark.slow),
        (2, (7, 18), {}),
    ],
)
def test_killed_and_resumed_from_memory_it_ends_as_if_nothing_had_been(
    trainer, tmp_path, ranks, holds, options
):
    options = {"ranks": ranks, "steps": 24} | options
    whole = run(trainer, tmp_path / "stock", "stock", **options).finish()
    root = tmp_path / "root"
    for hold in holds:
        log = kill_when_held(run(trainer, root, hold=hold, **options), ranks)
    last = run(trainer, root, **options).finish()
    check_ends_alike(last, whole, ranks)
    assert int(said(last, 0, "began")[0]) >= held(log, ranks) > 0
    assert re.search(r"libckpt: resumes step \d+ from own memory", last)
    # The step that was in memory has one, too: one file, by stock Lightning's rule.
    assert files(root) == files(tmp_path / "stock")


def test_killed_when_its_file_was_saved_and_memory_has_not_the_step_it_ends_the_same(
    trainer, tmp_path
):
    """The file has no random generators, so it does not come, and the older one stays."""
    options = {"steps": 24, "waits": 60}
    whole = run(trainer, tmp_path / "stock", "stock", **options).finish()
    root = tmp_path / "root"
    assert run(trainer, root, dies=10, **options).wait() == -signal.SIGKILL
    log = kill_when_held(run(trainer, root, hold=12, **options))
    assert said(log, 0, "began") == ["9"]
    last = run(trainer, root, **options).finish()
    check_ends_alike(last, whole)
    assert files(root) == files(tmp_path / "stock")


def test_a_step_that_has_a_file_waits_for_a_slot_and_the_others_do_not():
    """A file that is newer than memory would lose the state of the random generators."""
    session = unittest.mock.MagicMock()
    callback = libckpt.lightning.Callback(job="job")
    callback.session = session
    trainer = callback._trainer = unittest.mock.MagicMock()
    trainer.checkpoint_callbacks = [unittest.mock.MagicMock(_last_global_step_saved=2)]
    for trainer.global_step in (1, 2):
        callback.on_train_batch_end(trainer, None, None, None, 0)
    ((due, _), _), = session.save_checkpoint_if_needed.call_args_list
    ((saved, _, wait), _), = session.save.call_args_list
    assert (due, saved) == (1, 2)
    assert 0 < wait <= 5
    session.save.return_value.captured.result.assert_called_once()


def check_losses(log, ranks, whole):
    """Those of the ranks together are those of a fit that was left alone, which one rank made: sums
    in another order differ in their last digits."""
    of_ranks = [made(log, rank) for rank in range(ranks)]
    steps = set.intersection(*map(set, of_ranks))
    assert steps
    found = {step: sum(each[step][0] for each in of_ranks) / ranks for step in steps}
    assert found == pytest.approx({step: made(whole)[step][0] for step in steps}, rel=1e-4)


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_from_memory(trainer, tmp_path):
    root, step, options = tmp_path / "root", 0, {"steps": 20, "every": 50, "alike": True}
    whole = run(trainer, tmp_path / "stock", "stock", **options).finish()
    for ranks, hold in ((2, 7), (1, 12), (2, 17)):
        log = kill_when_held(run(trainer, root, hold=hold, ranks=ranks, **options), ranks)
        check_losses(log, ranks, whole)
        assert all(int(said(log, rank, "began")[0]) >= step for rank in range(ranks))
        step = held(log, ranks)
        assert step > 0
    log = run(trainer, root, **options).finish()
    assert max(made(log)) == 20
    check_losses(log, 1, whole)


def test_its_files_are_those_of_stock_lightning_which_goes_on_from_them(trainer, tmp_path):
    options = {"steps": 17, "every": 4}
    run(trainer, tmp_path / "stock", "stock", **options).finish()
    root = tmp_path / "root"
    run(trainer, root, **options).finish()
    (file,) = files(root)
    assert files(tmp_path / "stock") == [file]
    own = torch.load(root / "files" / file, weights_only=False)
    stock = torch.load(tmp_path / "stock" / "files" / file, weights_only=False)
    assert own.keys() == stock.keys()
    for name, part in stock["state_dict"].items():
        assert torch.equal(own["state_dict"][name], part)
    logs = [
        run(trainer, root, "stock", steps=24, path=str(where / "files" / file)).finish()
        for where in (tmp_path / "stock", root)
    ]
    assert said(logs[0], 0, "began") == ["16"]
    assert said(logs[0], 0, "weights") == said(logs[1], 0, "weights")


def test_without_its_memory_it_goes_on_from_the_newest_file_as_stock_does(
    trainer, tmp_path, programs
):
    root = tmp_path / "root"
    kill_when_held(run(trainer, root, hold=13))
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)
    log = run(trainer, root).finish()
    assert "memory has nothing" in log
    assert said(log, 0, "began") == ["10"]  # The file was captured only, and put in its place.
    run(trainer, tmp_path / "stock", "stock", steps=10).finish()
    (file,) = files(tmp_path / "stock")
    path = str(tmp_path / "stock" / "files" / file)
    expected = run(trainer, tmp_path / "stock", "stock", path=path).finish()
    assert said(log, 0, "weights") == said(expected, 0, "weights") != []


class Dropped(pl.LightningModule):
    """Its losses need the right weights, moments, and random generators."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
        self.losses = {}

    def training_step(self, batch, _):
        loss = (self.layers(batch) - 1).square().mean()
        self.losses[self.global_step] = loss.item()
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def test_a_fit_goes_on_with_more_steps_by_another_trainer_of_the_same_process(
    runtime, tmp_path, caplog
):
    """From the last step, which no file has; and the files of both are libckpt's."""
    def fit(name, steps, plugins=(), callbacks=(), path=None):
        torch.manual_seed(3)
        module = Dropped()
        files = pl.callbacks.ModelCheckpoint(tmp_path / name, every_n_train_steps=3)
        trainer = pl.Trainer(
            max_steps=steps, default_root_dir=tmp_path / name, logger=False, accelerator="cpu",
            devices=1, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[files, *callbacks], plugins=list(plugins),
        )  # fmt: skip
        # Each batch alike: Lightning begins such a loader anew in the middle of an epoch.
        trainer.fit(module, torch.utils.data.DataLoader(torch.ones(30, 4)), ckpt_path=path)
        return module.losses

    whole = fit("stock", 11)
    losses = {}
    for steps in (5, 11):
        found = fit("ours", steps, [libckpt.lightning.CheckpointIO()],
                    [libckpt.lightning.Callback()], libckpt.lightning.NEWEST)  # fmt: skip
        assert not losses.keys() & found.keys()
        losses |= found
    assert losses == whole
    assert "stock Lightning saves instead" not in caplog.text
    assert "resumes step 5 from own memory" in caplog.text


@pytest.mark.slow
def test_last_leads_any_number_of_ranks_to_the_last_file_of_a_killed_run(
    trainer, tmp_path, programs
):
    """Though that one was captured only, and an older one lies in its place."""
    found = {}
    for kind in ("stock", "libckpt"):
        options, root = {"every": 4, "last": True}, tmp_path / kind
        if kind == "stock":
            run(trainer, root, kind, ranks=2, steps=8, **options).finish()
        else:
            kill_when_held(run(trainer, root, hold=9, ranks=2, **options), 2)
            subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)
        for ranks, begin in ((1, 8), (2, 12)):
            log = run(trainer, root, kind, ranks=ranks, steps=begin + 4, path="last",
                      **options).finish()  # fmt: skip
            for rank in range(ranks):
                assert said(log, rank, "began") == [str(begin)]
            found.setdefault(kind, []).append(said(log, 0, "weights"))
    assert found["libckpt"] == found["stock"]


def test_an_optimizer_that_divides_its_state_is_left_to_lightning(runtime, tmp_path, caplog):
    class Divided(torch.optim.SGD):
        def consolidate_state_dict(self):
            pass

    class Model(Wide):
        def configure_optimizers(self):
            return Divided(self.parameters(), lr=0.1)

    callback = libckpt.lightning.Callback()
    trainer = fit_wide(tmp_path, callback, model=Model())
    assert trainer.global_step > 0
    assert "divides its state among the ranks" in caplog.text
    assert callback.session is None


def test_disabled_it_is_stock_lightning(trainer, tmp_path, monkeypatch):
    expected = run(trainer, tmp_path / "stock", "stock", steps=12).finish()
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    found = run(trainer, tmp_path / "root", steps=12).finish()
    assert said(found, 0, "weights") == said(expected, 0, "weights") != []
    assert files(tmp_path / "root") == files(tmp_path / "stock")
    assert not (tmp_path / "root" / "files" / ".libckpt").exists()
    assert not (tmp_path / "runtime").exists()


class Wide(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4096, 4096)  # Its copy takes a while.

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_wide(root, *callbacks, model=None, **options):
    trainer = pl.Trainer(
        default_root_dir=root, accelerator="cpu", max_epochs=1, logger=False,
        callbacks=list(callbacks), plugins=[libckpt.lightning.CheckpointIO()],
        num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    batches = torch.utils.data.DataLoader(torch.ones(3, 4096))
    trainer.fit(model or Wide(), batches, batches if "val_check_interval" in options else None)
    return trainer


@pytest.mark.parametrize("moment", ["on_validation_start", "on_train_epoch_end", "on_train_end"])
def test_a_capture_has_left_the_weights_before_others_may_exchange_them(
    runtime, tmp_path, monkeypatch, moment
):
    events = []
    for name in ("finish_capture", "save_checkpoint_if_needed"):
        def noted(session, *arguments, name=name, stock=getattr(libckpt.Session, name), **more):
            events.append(name)
            return stock(session, *arguments, **more)

        monkeypatch.setattr(libckpt.Session, name, noted)
    seen = []

    class Exchange(pl.Callback):
        pass

    setattr(Exchange, moment, lambda *_: seen.append(events[-1]))
    options = {"val_check_interval": 1} if moment == "on_validation_start" else {}
    fit_wide(tmp_path, Exchange(), libckpt.lightning.Callback(), enable_checkpointing=False,
             **options)  # fmt: skip
    assert set(seen) == {"finish_capture"}


def test_a_file_is_never_newer_than_what_memory_has(runtime, tmp_path):
    memory, found = libckpt.lightning.Callback(), []

    class Look(pl.Callback):
        def on_train_batch_start(self, trainer, *_):
            found.append((trainer.global_step, memory.session.counts()["captured"]))

    files = pl.callbacks.ModelCheckpoint(tmp_path / "files", every_n_train_steps=1)
    fit_wide(tmp_path, Look(), memory, files)
    assert found == [(0, None), (1, 1), (2, 2)]


def test_a_file_that_is_saved_after_a_fit_is_there_at_once(runtime, tmp_path):
    """The program may read it by any means, and nothing trains meanwhile."""
    memory, path = libckpt.lightning.Callback(), tmp_path / "after.ckpt"
    trainer = fit_wide(tmp_path, memory, enable_checkpointing=False)
    trainer.save_checkpoint(path)
    assert torch.load(path, weights_only=False)["global_step"] == 3


# --- the plugin alone


@pytest.fixture
def io(runtime):
    def close_all():
        for queue in list(_publish_queue._queues):
            queue.end()

    close_all()  # Those of fits.
    yield libckpt.lightning.CheckpointIO()
    close_all()


def test_a_file_is_what_was_saved_and_comes_later(io, tmp_path):
    weights, path = torch.zeros(100_000), tmp_path / "deep" / "a.ckpt"
    io.save_checkpoint({"weights": weights}, path)
    assert not path.exists()
    weights += 1
    assert not io.load_checkpoint(path)["weights"].any()  # It waits for it.
    io.save_checkpoint({"weights": weights}, str(path))  # The same path.
    io.teardown()
    assert torch.load(path)["weights"].all()


def test_an_older_file_stays_until_the_newer_one_is_there(io, tmp_path, monkeypatch):
    old, new = tmp_path / "old.ckpt", tmp_path / "new.ckpt"
    io.save_checkpoint({"number": 1}, old)
    io.teardown()
    io.save_checkpoint({"number": 2}, new)
    io.remove_checkpoint(old)
    assert old.exists() and not new.exists()
    io.teardown()
    assert new.exists() and not old.exists()
    io.remove_checkpoint(new)  # Nothing waits.
    assert not new.exists()
    io.save_checkpoint({"number": 3}, new)
    io.remove_checkpoint(new)  # On its way.
    io.teardown()
    assert not new.exists()


def test_many_saves_at_once_all_come(io, tmp_path):
    for number in range(6):
        io.save_checkpoint({"number": number}, tmp_path / f"{number}.ckpt")
        io.save_checkpoint({"number": number}, tmp_path / "last.ckpt")
    io.teardown()
    names = [*(f"{number}.ckpt" for number in range(6)), "last.ckpt"]
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == names
    assert torch.load(tmp_path / "last.ckpt") == {"number": 5}


def save_instead(io, path, old):
    """As ModelCheckpoint, which keeps one."""
    io.save_checkpoint({"number": 0}, old)
    io.teardown()
    io.holds_notes = True
    io.save_checkpoint({"number": 1}, path)
    io.remove_checkpoint(old)
    io.holds_notes = False


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_killed_runs_captured_files_are_put_in_their_place(io, tmp_path, has_memory):
    """If memory had the step, too: else neither the file comes, nor the older one goes."""
    path, old = tmp_path / "a.ckpt", tmp_path / "old.ckpt"
    save_instead(io, path, old)
    assert io.has_held_notes()
    if has_memory:
        io.release_notes()
        assert not io.has_held_notes()
    (queue,) = _publish_queue._queues
    queue.waiting.clear()
    _publish_queue._queues.remove(queue)
    queue.session.abandon()
    assert old.exists() and not path.exists()
    again = libckpt.lightning.CheckpointIO()
    again.finish(tmp_path)
    assert path.exists() == has_memory
    assert old.exists() != has_memory
    if has_memory:
        assert torch.load(path) == {"number": 1}
        assert os.listdir(tmp_path / ".libckpt") == ["lightning"]


def test_notes_that_cannot_be_written_cost_neither_the_training_nor_the_file(io, tmp_path, caplog):
    path, old = tmp_path / "a.ckpt", tmp_path / "old.ckpt"
    save_instead(io, path, old)
    work = tmp_path / ".libckpt" / "lightning-work"
    shutil.rmtree(work, ignore_errors=True)
    work.touch()
    io.release_notes()
    assert "come only if this process ends by itself" in caplog.text
    work.unlink()
    io.teardown()
    assert torch.load(path) == {"number": 1}
    assert not old.exists()


def test_what_a_full_disk_refuses_at_a_start_stays_and_comes_with_the_next_save(
    io, tmp_path, monkeypatch, caplog
):
    path, old = tmp_path / "a.ckpt", tmp_path / "old.ckpt"
    save_instead(io, path, old)
    io.release_notes()
    (queue,) = _publish_queue._queues
    queue.waiting.clear()
    _publish_queue._queues.remove(queue)
    queue.session.abandon()
    again = libckpt.lightning.CheckpointIO()
    with monkeypatch.context() as patch:
        def refuse(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(_disk, "bring", refuse)
        again.finish(tmp_path)
        assert "No space left on device; it stays" in caplog.text
        with pytest.raises(libckpt.StorageError, match="nothing to resume from, but a killed run"):
            _resuming.is_memory_newest(None, None, None, -1)
    assert old.exists() and not path.exists()
    again.save_checkpoint({"number": 2}, tmp_path / "b.ckpt")
    assert torch.load(path) == {"number": 1} and not old.exists()
    again.teardown()
    assert torch.load(tmp_path / "b.ckpt") == {"number": 2}
    assert not _resuming.is_memory_newest(None, None, None, -1)


def test_a_file_that_came_before_its_note_was_written_leaves_none(io, tmp_path):
    path, old = tmp_path / "a.ckpt", tmp_path / "old.ckpt"
    save_instead(io, path, old)
    io.teardown()
    assert path.exists() and not old.exists()
    io.release_notes()
    assert not list((tmp_path / ".libckpt").rglob("lightning-work/*.json"))


def test_a_checkpoint_that_is_not_captured_is_saved_by_lightning(io, tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise libckpt.Unavailable("no daemon")

    monkeypatch.setattr(_files._publish_queue.PublishQueue, "capture", refuse)
    io.save_checkpoint({"number": 1}, tmp_path / "a.ckpt")
    assert torch.load(tmp_path / "a.ckpt") == {"number": 1}
    assert "stock Lightning saves instead" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("has_memory", [True, False])
def test_a_full_disk_ends_no_training_whose_steps_are_in_memory(
    io, tmp_path, monkeypatch, caplog, number, has_memory
):
    def refuse(*_, **__):
        raise libckpt.StorageError(os.strerror(number))

    def save_part(io, checkpoint, path, storage_options=None):
        path.write_bytes(b"a part")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_files._publish_queue.PublishQueue, "capture", refuse)
    monkeypatch.setattr(_checkpoint_io.TorchCheckpointIO, "save_checkpoint", save_part)
    io.memory = unittest.mock.MagicMock() if has_memory else None
    if has_memory:
        io.memory.step_before_validation.return_value = None
    path = tmp_path / "a.ckpt"
    if has_memory and number != errno.EACCES:
        io.save_checkpoint({"number": 1}, path)
        assert "training goes on, with its steps in memory" in caplog.text
        assert not path.exists()
    else:
        with pytest.raises(OSError):
            io.save_checkpoint({"number": 1}, path)


class Scored(pl.LightningModule):
    """Each of its steps logs the next of the scores that it was made with."""

    def __init__(self, scores):
        super().__init__()
        self.weight, self.scores = torch.nn.Parameter(torch.ones(1)), list(scores)

    def training_step(self, batch, _):
        self.log("score", self.scores.pop(0))
        return (self.weight * batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_without_memory_for_its_steps_a_training_goes_on(runtime, tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise libckpt.Exhausted("memory_budget is too small")

    monkeypatch.setattr(_callback, "init", refuse)
    trainer = pl.Trainer(
        max_steps=2, default_root_dir=tmp_path, logger=False, accelerator="cpu", devices=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[libckpt.lightning.Callback()],
    )  # fmt: skip
    trainer.fit(Scored([1.0, 2.0]), torch.ones(2, 1))
    assert trainer.global_step == 2
    assert "memory_budget is too small; steps are not captured in memory" in caplog.text


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 1)])
def test_the_best_steps_by_what_is_logged_stay_among_those_of_the_session(
    runtime, tmp_path, mode, best
):
    class Stored(pl.Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step > 0:
                memory.session.flush()  # Each step, so that all could be kept.

    memory = libckpt.lightning.Callback(
        dir=tmp_path / "best", save_storage_interval=1, max_ckpt_num=1, keep_best=1,
        best_metric="score", best_mode=mode,
    )  # fmt: skip
    pl.Trainer(max_steps=5, default_root_dir=tmp_path, logger=False, accelerator="cpu", devices=1,
               enable_progress_bar=False, enable_model_summary=False,
               enable_checkpointing=False, callbacks=[memory, Stored()]).fit(
        Scored([1.0, 5.0, 2.0, 4.0, 3.0]), torch.ones(5, 1))  # fmt: skip
    kept = sorted(path.name for path in (tmp_path / "best").glob("step-*"))
    assert kept == [f"step-{best:09d}", "step-000000005"]
