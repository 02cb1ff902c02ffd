"""Goal: with libckpt's Storage in its seat, torch_checkpointing's saves are captured, and its
folders are its own, whole, also when the ranks are killed right after a save.

Method: ranks over gloo with torch_checkpointing's own manager and resharder; what is saved is
loaded with its stock storage by as many ranks and by others, and compared as a whole.
"""

import json
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_checkpointing")

from libckpt import InvalidArgument, Unavailable, torch_checkpointing  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402
from test_file_sets import die, number_of, save  # noqa: E402


@pytest.fixture
def run(trainer, tmp_path):
    def start(*calls, ranks=2, kind="libckpt"):
        return trainer("seat.py", str(tmp_path / "out"), str(ranks), kind, json.dumps(calls))

    return start


def said(log, word, rank=0):
    lines = [line.split() for line in log.splitlines()]
    return [line[2:] for line in lines if line[:2] == [f"r{rank}", word]]


def folders(tmp_path):
    return sorted(path.name for path in (tmp_path / "out").glob("[!.]*"))


@pytest.mark.slow
def test_what_is_saved_is_loaded_by_the_stock_storage_in_any_number_of_ranks(run, tmp_path):
    log = run(["save", "a", 1], ["save", "b", 2], ["load", "b"], ["load", "a"]).finish()
    assert said(log, "storage") == [["Storage"]]
    saved = dict(said(log, "saved"))
    expected = {"a": [saved["a"], "1"], "b": [saved["b"], "2"]}
    assert {name: found for name, *found in said(log, "loaded", 1)} == expected
    assert folders(tmp_path) == ["a", "b"]
    for ranks in (1, 2):  # Both have the metadata that another number of ranks needs.
        log = run(["load", "a"], ["load", "b"], ranks=ranks, kind="stock").finish()
        assert said(log, "storage") == [["LocalFileSystemStorage"]]
        assert {name: found for name, *found in said(log, "loaded")} == expected


def test_the_files_are_those_of_the_stock_storage(run, tmp_path):
    run(["save", "ours", 1]).finish()
    run(["save", "stock", 1], kind="stock").finish()
    ours, stock = (
        {path.relative_to(tmp_path / "out" / name): path
         for path in (tmp_path / "out" / name).rglob("*") if path.is_file()}
        for name in ("ours", "stock")
    )  # fmt: skip
    assert ours.keys() == stock.keys()
    assert (tmp_path / "out/ours/parts/progress_1.json").read_text() == '{\n    "seed": 1\n}'
    for name in (name for name in ours if name.suffix == ".pt"):
        found, expected = (torch.load(paths[name], weights_only=False) for paths in (ours, stock))
        assert repr(found) == repr(expected)


def test_ranks_that_are_killed_after_a_save_find_its_folder(run, tmp_path):
    process = run(["save", "a", 1], ["pause"])
    for rank in range(2):
        process.wait_until_said(f"r{rank} paused")
    process.kill()
    log = process.log.read_text()
    ((name, digest),) = said(log, "saved")
    again = run(["load", "a"]).finish()
    assert said(again, "loaded") == [[name, digest, "1"]]
    assert folders(tmp_path) == ["a"]


def test_a_folder_that_is_there_is_refused_and_one_that_is_removed_vanishes(run, tmp_path):
    calls = [["save", "a", 1], ["again", "a"], ["load", "a"], ["remove", "a"], ["save", "b", 2],
             ["load", "b"], ["save", "a", 3], ["load", "a"]]  # fmt: skip
    log = run(*calls).finish()
    ((name, *why),) = said(log, "refused")
    assert name == "a" and "a checkpoint is there already" in " ".join(why)
    loaded = [[name, seed] for name, _, seed in said(log, "loaded")]
    assert loaded == [["a", "1"], ["b", "2"], ["a", "3"]]
    assert folders(tmp_path) == ["a", "b"]


def test_a_folder_that_another_run_wrote_is_not_replaced_by_what_a_killed_one_had(
    runtime, tmp_path, caplog
):
    config = torch_checkpointing.StorageConfig(tmp_path / "out")
    first = config.create_storage()._sets
    save(first.sets, "a", 1)
    save(first.sets, "b", 1)
    die(first.sets)
    (tmp_path / "out" / "a").mkdir()  # As with LIBCKPT_DISABLE=1, and by more ranks perhaps.
    torch.save({"weight": torch.full((2,), 2.0), "number": 2}, tmp_path / "out" / "a" / "model.pt")
    (tmp_path / "out" / "a" / "config.json").write_text("2")
    second = config.create_storage()._sets
    assert [number_of(tmp_path / "out" / name) for name in "ab"] == [2, 1]
    assert "out/a is there already and stays as it is" in caplog.text
    assert second.sets.waiting() == [] and second.sets.work.noted() == []
    second.sets.close()


def test_a_refusal_is_told_once_though_a_manager_makes_two_storages(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise Unavailable("no daemon")

    monkeypatch.setattr(torch_checkpointing, "_Sets", refuse)
    config = torch_checkpointing.StorageConfig(tmp_path / "out")
    for _ in range(2):
        assert type(config.create_storage()) is torch_checkpointing.LocalFileSystemStorage
    assert caplog.text.count("no daemon; folders are written to disk as ever") == 1


@pytest.mark.slow
def test_a_saver_in_another_process_and_a_disabled_one_write_as_ever(run, tmp_path, monkeypatch):
    log = run(["save", "a", 1], ["load", "a"], kind="asynchronous").finish()
    assert "an asynchronous saver writes in a process of its own" in log
    assert said(log, "loaded")[0][1] == said(log, "saved")[0][1]
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    log = run(["save", "b", 1], ["load", "b"]).finish()
    assert said(log, "storage") == [["LocalFileSystemStorage"]]
    assert folders(tmp_path) == ["a", "b"]


def test_an_option_that_is_none_is_named():
    from libckpt.torch_checkpointing import StorageConfig

    with pytest.raises(InvalidArgument, match="no option keep_best, replica"):
        StorageConfig("out", replica=1, keep_best=2)


def test_a_rank_waits_for_a_folder_that_rank_0_has_not_published_yet(tmp_path, monkeypatch):
    sets = object.__new__(torch_checkpointing._Sets)
    sets.sets = types.SimpleNamespace(rank=1, waiting=lambda: [], directory=tmp_path)
    sets.begun = {"a": types.SimpleNamespace(commit=lambda: None)}
    sets._handed_over = set()
    settled = []
    monkeypatch.setattr(_publish_queue, "settle", lambda wait: settled.append(wait))
    monkeypatch.setattr(torch_checkpointing.time, "sleep", lambda _: (tmp_path / "a").mkdir())
    sets.commit("a")
    sets.await_folder("a", tmp_path / "a")
    assert settled == [True] and (tmp_path / "a").exists()
    sets.await_folder("b", tmp_path / "b")  # It captured no part of that.
    assert settled == [True]
