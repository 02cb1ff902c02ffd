"""Goal: a set of files of all ranks is there whole, or nothing of it is, whoever dies when.

Method: sets are saved by one rank in process, and by ranks over gloo that are killed between their
capture and its publishing; what is there is read with stock torch. Publishing is also cut off at
each of its changes of the file system, and made to fail.
"""

import errno
import json
import os
import re
import time

import pytest

torch = pytest.importorskip("torch")

from libckpt import errors  # noqa: E402
from libckpt.adapters.torch._file_sets import FileSets  # noqa: E402
from libckpt.core import _resuming  # noqa: E402
from libckpt.core.files import (  # noqa: E402
    _disk,
    _leftovers,
    _publish_queue,
    _storage,
    _work,
)
from test_publishing import cut_everywhere  # noqa: E402


@pytest.fixture
def open_sets(runtime, tmp_path):
    opened = []

    def open_one(directory=tmp_path / "out", **options):
        opened.append(FileSets("test", directory, **options))
        return opened[-1]

    yield open_one
    for sets in opened:
        sets._queue.close()


def die(sets):
    """As the process would: the daemon has what was captured."""
    sets._queue.waiting.clear()
    _publish_queue._queues.remove(sets._queue)
    sets._queue.session.abandon()


def save(sets, name, number=1, **more):
    fileset = sets.begin(name)
    fileset.objects["model.pt"] = {"weight": torch.full((500,), float(number)), "number": number}
    fileset.path("config.json").write_text(str(number))
    fileset.commit({"latest": name}, **more)


def number_of(folder):
    """The saved value, which all of its files say."""
    saved = torch.load(folder / "model.pt", weights_only=True)
    assert set(saved["weight"].tolist()) == {float(saved["number"])}
    assert (folder / "config.json").read_text() == str(saved["number"])
    return saved["number"]


def files(folder):
    return _disk.files_of(folder)


# --- one rank


def test_a_set_appears_whole_and_its_tracker_after_it(open_sets, tmp_path, monkeypatch):
    out, told = tmp_path / "out", []
    real = _disk.replace_text

    def replace(path, text):
        told.append((path.name, number_of(out / "a"), (out / "latest").exists()))
        real(path, text)

    monkeypatch.setattr(_disk, "replace_text", replace)
    sets = open_sets()
    save(sets, "a", then=lambda: told.append("then"))
    assert not (out / "a").exists() and sets.waiting() == ["a"]
    sets.settle()
    assert files(out / "a") == ["config.json", "model.pt"]
    assert told == [("a.json", 1, False), ("latest", 1, False), "then"]
    assert (out / "latest").read_text() == "a"
    assert sets.waiting() == []
    assert os.listdir(sets.work.directory) == []


def test_another_object_for_the_directory_shares_what_is_open(open_sets, tmp_path):
    """As where a cell of a notebook runs again, or another part of a training begins."""
    out, first = tmp_path / "out", open_sets()
    save(first, "a", 1)
    second = open_sets()
    assert number_of(out / "a") == 1  # It was not taken for a killed run's.
    save(second, "b", 2)
    save(first, "c", 3)
    first.close()
    assert [number_of(out / name) for name in "bc"] == [2, 3]
    save(second, "d", 4)
    second.close()
    assert number_of(out / "d") == 4
    assert (out / "latest").read_text() == "d"
    assert second._queue.session.is_closed
    save(open_sets(), "e", 5)


def test_a_commit_returns_when_the_daemon_has_it_whatever_happens_then(open_sets, monkeypatch):
    sets, waited = open_sets(), []
    real = sets._queue.session.wait

    def wait(step, level, deadline):
        marks = list(sets.work.folder(str(step)).glob("captured-*"))
        waited.append((level, marks))
        return real(step, level, deadline)

    monkeypatch.setattr(sets._queue.session, "wait", wait)
    save(sets, "a")
    assert waited[0] == ("captured", [])  # It is marked as captured after that.


def test_an_object_is_captured_as_it_was_then(open_sets, tmp_path):
    sets = open_sets()
    weights = torch.zeros(100_000)
    fileset = sets.begin("a")
    fileset.objects["w.pt"] = weights
    fileset.commit()
    weights += 1
    sets.settle()
    assert not torch.load(tmp_path / "out" / "a" / "w.pt").any()


def test_two_saves_at_once_both_come_in_order(open_sets, tmp_path):
    sets = open_sets()
    came = []
    for number in range(5):
        save(sets, f"s{number}", number, then=lambda number=number: came.append(number))
    sets.settle()
    assert came == [0, 1, 2, 3, 4]
    assert [number_of(tmp_path / "out" / f"s{number}") for number in range(5)] == came
    assert (tmp_path / "out" / "latest").read_text() == "s4"


def test_sets_of_an_area_are_beside_others_and_may_have_their_folders_alone(open_sets, tmp_path):
    out = tmp_path / "out"
    folder = out / "a"
    folder.mkdir(parents=True)
    (folder / "rank_1.pt").write_text("of a run with more ranks")
    other, sets = open_sets(), open_sets(area="apart", keeps_foreign=False)
    save(other, "b", 1)
    save(sets, "a", 2)
    sets.settle()
    assert files(folder) == ["config.json", "model.pt"]
    assert number_of(folder) == 2 and number_of(out / "b") == 1
    assert sorted(os.listdir(out / ".libckpt")) == ["apart", "job", "sets", "work"]
    save(sets, "a", 3)
    die(sets)
    assert number_of(folder) == 2
    open_sets(area="apart", keeps_foreign=False)
    assert number_of(folder) == 3


def test_a_name_again_replaces_its_set_and_leaves_foreign_files(open_sets, tmp_path):
    sets, folder = open_sets(), tmp_path / "out" / "a"
    save(sets, "a", 1)
    sets.settle()
    (folder / "sub").mkdir()
    (folder / "sub" / "notes.txt").write_text("mine")
    fileset = sets.begin("a")
    fileset.objects["other.pt"] = 7
    fileset.commit()
    sets.settle()
    assert files(folder) == ["other.pt", "sub/notes.txt"]
    save(sets, "a", 2)
    save(sets, "a", 3)
    sets.settle()
    assert number_of(folder) == 3
    assert files(folder) == ["config.json", "model.pt", "sub/notes.txt"]


def test_a_folder_that_another_program_made_keeps_its_files(open_sets, tmp_path):
    folder = tmp_path / "out" / "a"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "config.json").write_text("old")
    sets = open_sets()
    save(sets, "a", 2)
    sets.settle()
    assert number_of(folder) == 2
    assert (folder / "notes.txt").read_text() == "mine"


def test_only_own_sets_are_removed(open_sets, tmp_path):
    sets, out = open_sets(), tmp_path / "out"
    save(sets, "a")
    sets.settle()
    (out / "b").mkdir()
    assert not sets.remove("b") and not sets.remove("c") and not sets.remove("../out/a")
    assert sets.remove("a") and not sets.remove("a")
    assert sorted(path.name for path in out.iterdir()) == [".libckpt", "b", "latest"]


def test_more_objects_than_a_step_has_members_all_come(open_sets, tmp_path):
    sets = open_sets()
    fileset = sets.begin("a")
    fileset.objects |= {f"deep/er/{number}.pt": torch.tensor([number]) for number in range(20)}
    fileset.commit()
    sets.settle()
    for number in range(20):
        assert torch.load(tmp_path / "out" / "a" / f"deep/er/{number}.pt").item() == number


def test_tensors_become_a_safetensors_file_below_a_folder_of_the_directory(open_sets, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file

    sets = open_sets()
    tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.int8)}
    fileset = sets.begin("deep/a")
    assert not fileset.take_tensors("no.safetensors", {"tied": tensors["b"], "b": tensors["b"]})
    assert fileset.take_tensors("model.safetensors", tensors)
    assert not fileset.take_tensors("again.safetensors", tensors)
    fileset.objects["rest.pt"] = 1
    fileset.commit()
    sets.settle()
    file = tmp_path / "out" / "deep" / "a" / "model.safetensors"
    found = load_file(file)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["format"] == "pt"
    assert files(file.parent) == ["model.safetensors", "rest.pt"]
    assert sets.remove("deep/a")
    assert not file.parent.exists()


class Stateful:
    def __init__(self, number):
        self.number = number

    def state_dict(self):
        return {"number": -1}


def test_an_object_with_a_state_dict_is_itself_in_its_file(open_sets, tmp_path):
    sets = open_sets()
    fileset = sets.begin("a")
    fileset.objects["sampler.bin"] = Stateful(3)
    fileset.commit()
    sets.settle()
    found = torch.load(tmp_path / "out" / "a" / "sampler.bin", weights_only=False)
    assert found.number == 3


def test_an_object_that_torch_cannot_save_raises_and_the_next_set_comes(open_sets, tmp_path):
    sets = open_sets()
    fileset = sets.begin("bad")
    fileset.objects["bad.pt"] = {"function": lambda: 1}
    with pytest.raises(Exception, match="lambda"):
        torch.save(fileset.objects["bad.pt"], tmp_path / "bad.pt")
    with pytest.raises(Exception, match="lambda"):
        fileset.commit()
    save(sets, "good", 2)
    sets.settle()
    assert number_of(tmp_path / "out" / "good") == 2
    assert not (tmp_path / "out" / "bad").exists()
    assert os.listdir(sets.work.directory) == []


class OnlyStock:
    """torch.save has it, a capture does not."""

    def __reduce__(self):
        if OnlyStock.refuses:
            OnlyStock.refuses = False
            raise RuntimeError("not now")
        return (int, (5,))


def test_a_set_that_cannot_be_captured_is_written_by_stock_torch(open_sets, tmp_path, caplog):
    sets = open_sets()
    fileset = sets.begin("a")
    OnlyStock.refuses = True
    fileset.objects |= {"odd.pt": OnlyStock(), "even.pt": torch.ones(3)}
    fileset.commit()
    sets.settle()
    assert "stock torch writes its files" in caplog.text
    assert torch.load(tmp_path / "out" / "a" / "odd.pt", weights_only=False) == 5
    assert torch.load(tmp_path / "out" / "a" / "even.pt").tolist() == [1, 1, 1]


def test_without_memory_for_it_stock_torch_writes(open_sets, tmp_path, caplog):
    sets = open_sets(memory_budget="64MiB")
    for name in "abc":  # As large as the budget: no Slot can hold one.
        fileset = sets.begin(name)
        fileset.objects["big.pt"] = torch.full((20 << 20,), float(ord(name)))
        fileset.commit({"latest": name})
    sets.settle()
    assert "stock torch writes its files" in caplog.text
    assert torch.load(tmp_path / "out" / "c" / "big.pt")[-1] == ord("c")
    assert (tmp_path / "out" / "latest").read_text() == "c"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/../b", "/a", "a/", "a/.b"])
def test_a_name_that_leads_elsewhere_is_refused(open_sets, name):
    with pytest.raises(errors.InvalidArgument, match="is to be a folder"):
        open_sets().begin(name)


def test_a_full_disk_on_publishing_loses_that_set_only(open_sets, tmp_path, monkeypatch, caplog):
    sets, out = open_sets(), tmp_path / "out"
    save(sets, "a", 1)
    sets.settle()
    with monkeypatch.context() as patch:
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(_disk, "bring", full)
        save(sets, "a", 2)
        sets.settle()
    assert "No space left" in caplog.text
    assert number_of(out / "a") == 1
    save(sets, "a", 3)
    sets.settle()
    assert number_of(out / "a") == 3
    die(sets)
    open_sets()  # The failed set is older than the one there.
    assert number_of(out / "a") == 3


def test_a_killed_runs_captured_set_comes_with_the_next_start(open_sets, tmp_path):
    sets, out = open_sets(), tmp_path / "out"
    save(sets, "a", 1)
    save(sets, "b", 2)
    die(sets)
    assert not (out / "latest").exists()
    sets = open_sets()
    assert number_of(out / "b") == 2
    assert (out / "latest").read_text() == "b"
    save(sets, "c", 3)  # With a number of its own.
    sets.settle()
    assert number_of(out / "c") == 3


@pytest.fixture
def refuses(monkeypatch):
    """Lets the disk refuse files while it is set, or not."""
    real, state = _disk.bring, {"is_full": False}

    def bring(*paths):
        if state["is_full"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*paths)

    monkeypatch.setattr(_disk, "bring", bring)
    yield state
    _leftovers._unfinished.clear()


@pytest.mark.parametrize("call", ["settle", "save"])
def test_files_that_a_full_disk_refused_at_the_start_come_with_the_next_call(
    open_sets, tmp_path, refuses, caplog, call
):
    sets, out = open_sets(), tmp_path / "out"
    save(sets, "a", 1)
    die(sets)
    refuses["is_full"] = True
    sets = open_sets()
    assert "No space left on device; it stays, and is tried again" in caplog.text
    with pytest.raises(errors.StorageError, match="nothing to resume from, but a killed run had"):
        _resuming.is_memory_newest(None, None, None, -1)
    refuses["is_full"] = False
    if call == "save":
        save(sets, "b", 2)
        assert number_of(out / "a") == 1 and (out / "latest").read_text() == "a"
    sets.settle()
    assert (out / "latest").read_text() == ("b" if call == "save" else "a")
    assert number_of(out / "a") == 1
    assert not _resuming.is_memory_newest(None, None, None, -1)
    assert os.listdir(sets.work.directory) == []


def test_files_that_a_full_disk_refused_come_with_a_later_start(open_sets, tmp_path, refuses):
    sets, out = open_sets(), tmp_path / "out"
    save(sets, "a", 1)
    die(sets)
    refuses["is_full"] = True
    die(open_sets())
    refuses["is_full"] = False
    open_sets()
    assert number_of(out / "a") == 1
    _resuming.is_memory_newest(None, None, None, -1)


def test_a_step_that_never_comes_to_storage_is_waited_for_and_named(
    open_sets, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(_leftovers, "FINISH_DEADLINE", 0.1)
    monkeypatch.setattr(_leftovers, "SILENT_MAX", 0.0)
    monkeypatch.setattr(_storage, "find_step", lambda *_: (None, None))
    work = _work.WorkFolders(tmp_path / "out" / ".libckpt" / "work")
    for name, number in (("a", 100), ("b", 200)):
        (work.begin(str(number)) / "captured-0").touch()
        work.note(str(number), {"name": name, "trackers": {}, "ranks": 1})
    (work.folder("100") / "missed-0").touch()
    open_sets()
    assert f"{tmp_path / 'out' / 'a'} does not come: a killed run had captured it, but not on " in (
        caplog.text
    )
    assert f"{tmp_path / 'out' / 'b'} does not come: a killed run had captured it, but the" in (
        caplog.text
    )
    assert f"had captured files for {tmp_path / 'out'}: the daemon is waited for" in caplog.text


def test_a_step_that_a_newer_one_has_overtaken_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(_storage, "steps", lambda _: [(200, tmp_path / "step-000000200")])
    ends = time.monotonic() + 60
    assert _leftovers.await_step(tmp_path, 100, ends) == (None, None)
    assert time.monotonic() < ends


def test_a_set_is_whole_wherever_its_publishing_ends(tmp_path, monkeypatch):
    out, counts = tmp_path / "out", {"is_new": 0}
    sets = object.__new__(FileSets)
    sets._keeps_foreign = True
    sets._is_once = False
    sets.directory, sets.private, sets.rank = out, out / _work.PRIVATE, 0
    sets.work = _work.WorkFolders(sets.private / "work")
    step = tmp_path / "step"
    monkeypatch.setattr(_storage, "files_of", lambda path, _: [{"model.pt": path / "rank-0.pt"}])

    def prepare():
        import shutil

        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(step, ignore_errors=True)
        step.mkdir()
        torch.save({"weight": torch.full((5,), 2.0), "number": 2}, step / "rank-0.pt")
        (out / "a").mkdir(parents=True)
        torch.save({"weight": torch.full((5,), 1.0), "number": 1}, out / "a" / "model.pt")
        (out / "a" / "config.json").write_text("1")
        (out / "a" / "foreign.txt").write_text("foreign")
        (sets.private / "sets").mkdir(parents=True)
        (sets.private / "sets" / "a.json").write_text('["config.json", "model.pt"]')
        (sets.work.folder("7") / "rank-0").mkdir(parents=True)
        (sets.work.folder("7") / "rank-0" / "config.json").write_text("2")
        sets.work.note("7", {"name": "a", "trackers": {"latest": "a"}, "ranks": 1})

    def publish():
        for name, facts in sets.work.noted():
            sets.publish(int(name), facts, step)

    def check(is_done=False):
        found = number_of(out / "a")
        assert (out / "a" / "foreign.txt").read_text() == "foreign"
        if is_done or (out / "latest").exists():
            assert found == 2
            counts["is_new"] += 1
        if is_done:
            assert sorted(os.listdir(out)) == [".libckpt", "a", "latest"]

    assert cut_everywhere(monkeypatch, prepare, publish, check) > 10
    assert counts["is_new"] > 10


def test_a_step_number_that_an_older_timeline_has_too_is_the_newer_one(tmp_path, monkeypatch):
    steps = [(3, tmp_path / "step-000000003"), (3, tmp_path / "step-000000003.g2")]
    monkeypatch.setattr(_storage, "steps", lambda _: steps)
    monkeypatch.setattr(_storage, "files_of", lambda path, _: [{"model.pt": path / "rank-0.pt"}])
    assert _storage.find_step(tmp_path, 3)[0] == tmp_path / "step-000000003.g2"


def test_what_cannot_be_read_is_no_step(tmp_path):
    assert _storage.steps(tmp_path / "nowhere") == []
    (tmp_path / "step-000000003").mkdir()
    (tmp_path / "step-000000003" / "manifest.json").write_text('{"format": "libckpt-manifest"}')
    assert _storage.steps(tmp_path) == []
    assert _storage.find_step(tmp_path, 3) == (None, None)


# --- several


def run(trainer, directory, ranks, *calls):
    return trainer("sets.py", str(directory), str(ranks), json.dumps(calls))


def rank_files(ranks):
    own = [f"own_{rank}.txt" for rank in range(ranks)]
    return sorted([*own, *(f"rank_{rank}.pt" for rank in range(ranks)), "parts/common.pt"])


def numbers(folder, ranks):
    """Each rank's value in it, by both of its files."""
    assert files(folder) == rank_files(ranks)
    found = [torch.load(folder / f"rank_{rank}.pt")["b"] for rank in range(ranks)]
    assert [int((folder / f"own_{rank}.txt").read_text()) for rank in range(ranks)] == found
    return found


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_files_of_all_ranks_appear_together(trainer, tmp_path, ranks):
    out = tmp_path / "out"
    calls = [["save", "a", 1], ["save", "b", 2], ["settle"], ["remove", "a"], ["save", "b", 3]]
    said = run(trainer, out, ranks, *calls).finish()
    assert numbers(out / "b", ranks) == [3] * ranks
    assert not (out / "a").exists()
    assert (out / "latest").read_text() == "b"
    assert re.findall(r"^r0 is (\w)", said, re.M) == ["a", "b", "b"]
    assert not re.findall(r"^r[12] is", said, re.M)


def test_nothing_is_seen_of_a_set_that_a_rank_gave_up_and_the_next_one_comes(trainer, tmp_path):
    out = tmp_path / "out"
    # A set may overtake the one before on a slow disk: the second waits until the first is there.
    calls = [["give up", "a", 1], ["save", "b", 2], ["settle"]]
    calls += [["give up", "c", 0], ["save", "d", 3]]
    said = run(trainer, out, 2, *calls).finish()
    for name, number in (("b", 2), ("d", 3)):
        assert numbers(out / name, 2) == [number] * 2
    assert sorted(path.name for path in out.iterdir()) == [".libckpt", "b", "d", "latest"]
    assert "a does not come: not all ranks captured it" in said


@pytest.mark.slow
def test_a_rank_that_says_nothing_costs_the_set_after_it_too_and_no_more(trainer, tmp_path):
    out = tmp_path / "out"
    calls = [["miss", "a", 1], ["save", "b", 2], ["settle"], ["save", "c", 3]]
    run(trainer, out, 2, *calls).finish()
    assert numbers(out / "c", 2) == [3, 3]
    assert not (out / "a").exists()
    assert (out / "latest").read_text() == "c"


def test_without_a_session_that_takes_anything_one_rank_writes_the_set(
    open_sets, tmp_path, monkeypatch, caplog
):
    sets = open_sets()
    save(sets, "a", 1)

    def refuse(*_, **__):
        raise errors.Unavailable("no daemon")

    with monkeypatch.context() as patch:
        patch.setattr(sets._queue, "capture_as", refuse)
        save(sets, "b", 2)
    assert number_of(tmp_path / "out" / "a") == 1
    assert number_of(tmp_path / "out" / "b") == 2
    save(sets, "c", 3)
    sets.settle()
    assert (tmp_path / "out" / "latest").read_text() == "c"
    assert "no daemon; stock torch writes its files" in caplog.text


def test_killed_before_it_published_the_next_start_does_and_drops_what_is_not_whole(
    trainer, tmp_path
):
    out = tmp_path / "out"
    process = run(trainer, out, 2, ["save", "a", 1], ["miss", "b", 1], ["pause"])
    for rank in (0, 1):
        process.wait_until_said(f"r{rank} did pause")
    process.kill()
    assert not (out / "b").exists()
    run(trainer, out, 2, ["save", "c", 3]).finish()
    assert numbers(out / "a", 2) == [1, 1]
    assert numbers(out / "c", 2) == [3, 3]
    assert not (out / "b").exists()
    assert (out / "latest").read_text() == "c"
