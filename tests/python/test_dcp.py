"""Goal: torch.distributed.checkpoint saves into memory and folders through libckpt, and loads what
was saved at any number of ranks and in any layout.

Method: real ranks over gloo. Layouts are those of DCP's own tests of resharding: each is saved,
loaded in another one and compared. Folders are read by stock DCP, and its own are read here.
"""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

import torch.distributed as dist  # noqa: E402

import libckpt  # noqa: E402
import libckpt.dcp  # noqa: E402

ID, LATEST = "ckpt://layouts/step-3", "ckpt://layouts/latest"


def staged_by(storage):
    """For async_save; that of torch 2.6 has no such parameter, and asks the storage_writer."""
    has_stager = "async_stager" in inspect.signature(dcp.async_save).parameters
    return {"async_stager": storage} if has_stager else {}


def needs_torch(major, minor):
    """For what an older DCP or DTensor has not, or has otherwise."""
    has = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return pytest.mark.skipif(has < (major, minor), reason=f"torch {major}.{minor} is wanted")


@pytest.fixture
def do(trainer):
    """Does what trainers/dcp_layouts.py is asked for, and checks that all of it was done."""

    def run(*specs, storage=None, stock=False):
        given = None if stock else (storage or {})
        log = trainer("dcp_layouts.py", json.dumps(given), json.dumps(specs)).finish()
        told = [line for line in log.splitlines() if line.startswith(("done ", "failed "))]
        assert len(told) == len(specs), log[-6000:]
        assert not [line for line in told if line.startswith("failed")], log[-6000:]

    return run


@needs_torch(2, 13)
def test_another_layout_is_loaded_from_memory(do):
    """Rows as columns, with as many ranks as saved; and with fewer and more."""
    do(
        ["save", [2], ["S0"], ID],
        ["load", [2], ["S1"], ID],
        ["load", [1], ["S0"], LATEST],
        ["load", [3], ["S0"], LATEST],
    )


@needs_torch(2, 13)
@pytest.mark.slow
def test_any_number_of_ranks_loads_what_any_number_saved(do):
    for saved in (["save", [1], ["R"], ID], ["save", [2, 2], ["R", "S0"], ID],
                  ["save", [2, 2], ["S0", "S1"], ID], ["save", [2, 2], ["SS0", "S0"], ID],
                  ["save", [3], ["S1"], ID]):  # fmt: skip
        do(
            saved,
            ["load", [1], ["S0"], LATEST],
            ["load", [2], ["S0"], LATEST],
            ["load", [2], ["R"], LATEST],
            ["load", [3], ["S1"], LATEST],
            ["load", [2, 2], ["S0", "S0"], LATEST],
            ["load", [2, 2], ["SS0", "S0"], LATEST],
            ["load", [2, 2], ["R", "S1"], LATEST],
        )


@needs_torch(2, 13)
@pytest.mark.slow
def test_another_layout_is_loaded_from_storage(do, tmp_path, programs):
    storage = {"dir": str(tmp_path / "dir"), "save_storage_interval": 1}
    do(["save", [2], ["S0"], ID], storage=storage)
    subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)
    do(
        ["load", [2], ["S1"], LATEST],
        ["load", [1], ["S0"], LATEST],
        ["load", [3], ["S1"], ID],
        storage=storage,
    )


@needs_torch(2, 13)
def test_stock_dcp_loads_our_folder_and_we_load_its(do, tmp_path):
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    do(["save", [2], ["S0"], ours], ["save", [2], ["S1"], ours])  # The second replaces the first.
    do(["load", [3], ["S0"], ours], ["save", [2], ["S0"], theirs], stock=True)
    do(["load", [1], ["S1"], theirs])
    assert sorted(os.listdir(ours)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert os.listdir(tmp_path / ".libckpt/work") == []


@pytest.fixture
def alone(monkeypatch):
    """This process as a group of its own, as async_save wants one."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield libckpt.dcp.Storage
    for session in list(libckpt.core._open_sessions.sessions):
        session.abandon()
    dist.destroy_process_group()


def loaded(storage, checkpoint_id, **state):
    dcp.load(state, checkpoint_id=checkpoint_id, storage_reader=storage)
    return state


@pytest.mark.parametrize("place", ["ckpt://torn", "folder"])
def test_a_mutation_after_async_save_returned_is_in_no_checkpoint(alone, runtime, tmp_path, place):
    """pytorch #144657: tensors of the host were saved with later values."""
    storage = alone("ckpt://torn", raise_on_error=True)
    value = torch.zeros(1 << 20)
    base = place if "://" in place else str(tmp_path / place)
    waiting = []
    for step in range(1, 9):
        value.fill_(step)
        nested = {"list": [value, step]}
        waiting.append(dcp.async_save({"value": value, "nested": nested},
                                      checkpoint_id=f"{base}/step-{step}",
                                      storage_writer=storage, **staged_by(storage)))  # fmt: skip
        value.fill_(-1)
        nested["list"][1] = -1
        if "://" in base or step % 2 == 0:  # Folders two at a time, with two sets of buffers.
            for each in waiting:
                each.result()
            found = {"value": torch.zeros(1 << 20), "nested": {"list": [torch.zeros(1 << 20), 0]}}
            dcp.load(found, checkpoint_id=f"{base}/step-{step}", storage_reader=storage)
            assert set(found["value"].unique().tolist()) == {step}
            assert torch.equal(found["nested"]["list"][0], found["value"])
            assert found["nested"]["list"][1] == step


def test_memory_is_read_without_a_pickle_where_json_holds_the_objects(alone, runtime):
    storage = alone("ckpt://plain", raise_on_error=True)
    state = {"step": 3, "names": ["a", "b"], "ratio": float("inf"), "none": None, "pair": (1, 2)}
    dcp.save(dict(state), checkpoint_id="ckpt://plain/step-3", storage_writer=storage)
    document = libckpt.dcp._fetching.find(
        libckpt.dcp._jobs.of("plain", {}), libckpt.dcp._ids.parse("ckpt://plain/step-3")
    ).document
    assert {place.stored.form for place in document._places.values()} == {"json"}
    found = loaded(storage, "ckpt://plain/latest", **dict.fromkeys(state))
    assert found == state


def test_a_folder_that_is_not_finished_is_not_there(alone, tmp_path, monkeypatch):
    storage, path = alone(), tmp_path / "step-1"

    def die(_):
        raise KeyboardInterrupt("as if it had died")

    monkeypatch.setattr(libckpt.dcp._folders._disk, "sync_tree", die)
    with pytest.raises(BaseException, match="as if it had died"):
        dcp.save({"value": torch.ones(3)}, checkpoint_id=path, storage_writer=storage)
    assert not path.exists()
    assert (tmp_path / ".libckpt" / "work" / "step-1" / ".metadata").exists()
    monkeypatch.undo()
    dcp.save({"value": torch.full((3,), 2.0)}, checkpoint_id=path, storage_writer=storage)
    found = {"value": torch.zeros(3)}
    dcp.load(found, checkpoint_id=path)
    assert torch.equal(found["value"], torch.full((3,), 2.0))
    assert os.listdir(tmp_path / ".libckpt/work") == []


@pytest.mark.parametrize("stage", ["write", "finish"])
def test_a_folder_that_fails_leaves_its_room_to_the_next(alone, tmp_path, monkeypatch, stage):
    storage, state = alone(), {"value": torch.ones(3)}

    def fill(writer, plan, planner):
        (writer.path / f"{plan.storage_data.prefix}0.distcp").write_text("a part")
        raise OSError("no space left")

    def refuse(_):
        raise OSError("no space left")

    if stage == "write":
        monkeypatch.setattr(dcp.FileSystemWriter, "write_data", fill)
    else:
        monkeypatch.setattr(libckpt.dcp._folders._disk, "sync_tree", refuse)
    with pytest.raises(BaseException, match="no space left"):
        dcp.save(state, checkpoint_id=tmp_path / "step-1", storage_writer=storage)
    assert not list((tmp_path / ".libckpt/work").rglob("*.distcp"))
    monkeypatch.undo()
    dcp.save(state, checkpoint_id=tmp_path / "step-2", storage_writer=storage)
    assert torch.equal(loaded(storage, tmp_path / "step-2", value=torch.zeros(3))["value"],
                       torch.ones(3))  # fmt: skip
    assert not (tmp_path / "step-1").exists()


def test_names_that_share_a_memory_are_loaded_both(alone, runtime):
    storage = alone("ckpt://tied", raise_on_error=True)
    weight = torch.arange(6.0)
    dcp.save({"a": weight, "b": weight}, checkpoint_id="ckpt://tied/step-1", storage_writer=storage)
    shared = torch.zeros(6)
    found = loaded(storage, "ckpt://tied/latest", a=shared, b=shared)
    assert found["a"] is found["b"] is shared
    assert torch.equal(shared, weight)
    different = {"a": weight, "b": weight + 1}
    dcp.save(different, checkpoint_id="ckpt://tied/step-2", storage_writer=storage)
    with pytest.raises(BaseException, match='"a" and "b" share memory here but differ there'):
        loaded(storage, "ckpt://tied/latest", a=shared, b=shared)
    found = loaded(storage, "ckpt://tied/latest", a=torch.zeros(6), b=torch.zeros(6))
    assert all(torch.equal(found[name], value) for name, value in different.items())


def test_a_load_into_a_tensor_that_is_conjugated_or_negated_when_read(alone, runtime, tmp_path):
    storage = alone("ckpt://lazy", raise_on_error=True)
    saved = {"conj": torch.randn(6, dtype=torch.complex64), "neg": torch.randn(4)}
    lazy = {"conj": torch.randn(6, dtype=torch.complex64).conj(),
            "neg": torch.randn(4, dtype=torch.complex64).conj().imag}  # fmt: skip
    assert lazy["conj"].is_conj() and lazy["neg"].is_neg()
    plain = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    for step, (given, wanted) in enumerate([(saved, lazy), (lazy, plain)], 1):
        expected = {name: tensor.clone() for name, tensor in given.items()}
        for base in ("ckpt://lazy", tmp_path):
            place = f"{base}/step-{step}"
            dcp.save(dict(given), checkpoint_id=place, storage_writer=storage)
            found = loaded(storage, place, **wanted)
            for name, tensor in expected.items():
                assert found[name] is wanted[name]
                assert torch.equal(found[name], tensor), (name, base)


def test_a_tensor_that_another_rank_was_given_to_save_is_not_missed(alone, runtime, caplog):
    """DCP's planner says at each save which rank gives what, so here the next one gives less."""
    storage = alone("ckpt://less", raise_on_error=True)
    state = {"a": torch.arange(6.0), "b": torch.ones(2)}
    for step in (1, 2):
        dcp.save(dict(state), checkpoint_id=f"ckpt://less/step-{step}", storage_writer=storage)
        state.pop("b", None)
    assert torch.equal(loaded(storage, "ckpt://less/latest", a=torch.zeros(6))["a"], state["a"])
    assert "are not given" not in caplog.text


def test_a_load_may_want_other_types_and_a_part(alone, runtime):
    storage = alone("ckpt://part", raise_on_error=True)
    state = {"a": torch.arange(6.0), "b": torch.ones(2), "step": 1}
    dcp.save(state, checkpoint_id="ckpt://part/step-1", storage_writer=storage)
    found = loaded(storage, "ckpt://part/latest", a=torch.zeros(6, dtype=torch.float64)[::1])
    assert torch.equal(found["a"], torch.arange(6.0, dtype=torch.float64))


def test_small_chunks_go_to_another_rank_together(monkeypatch):
    """As the number of steps of each parameter does, of a model with thousands of them."""
    from libckpt.dcp import _exchange

    monkeypatch.setattr(_exchange, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(_exchange.distributed, "P2POp", lambda *arguments: arguments)
    monkeypatch.setattr(_exchange._group, "message_device", lambda: torch.device("cpu"))
    sizes = {f"step {i}": 4 for i in range(100)} | {"large": 2100}
    transfers = [(name, 0, target) for target in (1, 2) for name in sizes]

    def of_rank(rank, fill):
        contents = {(0, name): fill(size) for name, size in sizes.items()}
        own = [each for each in transfers if rank in each[1:]]
        return contents, list(_exchange.messages(own, contents, rank))

    sent, out = of_rank(0, lambda size: torch.randint(0, 255, (size,), dtype=torch.uint8))
    assert len(out) == 6  # 2500 bytes for each of two ranks.
    for rank, way in (1, out[:3]), (2, out[3:]):
        received, coming = of_rank(rank, lambda size: torch.zeros(size, dtype=torch.uint8))
        for one, other in zip(way, coming, strict=True):
            other.operation[1].copy_(one.operation[1])
            assert other.take()
        assert all(torch.equal(sent[key], received[key]) for key in sent)
        coming[0].operation[1][5] += 1
        assert not coming[0].take()


@needs_torch(2, 13)
def test_a_tensor_of_several_parts_on_a_rank_is_saved_and_loaded(alone, runtime):
    wrappers = pytest.importorskip("torch.distributed.tensor._shards_wrapper")
    from torch.distributed.tensor import DTensor, Shard

    storage = alone("ckpt://several", raise_on_error=True)
    mesh = dist.init_device_mesh("cpu", (1,))
    whole = torch.arange(24.0).reshape(4, 6)

    def make(values):
        parts = [values[:, :2].clone(), values[:, 2:].clone()]
        local = wrappers.LocalShardsWrapper(parts, [(0, 0), (0, 2)])
        return DTensor.from_local(local, mesh, [Shard(1)], run_check=False, shape=whole.shape,
                                  stride=whole.stride())  # fmt: skip

    dcp.async_save({"w": make(whole)}, checkpoint_id="ckpt://several/step-1",
                   storage_writer=storage, **staged_by(storage)).result()  # fmt: skip
    parts = loaded(storage, "ckpt://several/latest", w=make(torch.zeros(4, 6)))["w"]
    assert torch.equal(torch.cat(parts._local_tensor.local_shards(), dim=1), whole)
    assert torch.equal(loaded(storage, "ckpt://several/step-1", w=torch.zeros(4, 6))["w"], whole)


@needs_torch(2, 13)
def test_a_stock_folder_with_metadata_of_each_rank_is_loaded(alone, tmp_path):
    dcp.save({"value": torch.ones(3)}, checkpoint_id=tmp_path / "step-1", use_collectives=False)
    found = loaded(alone(), tmp_path / "step-1", value=torch.zeros(3))
    assert torch.equal(found["value"], torch.ones(3))


def test_a_load_brings_what_was_saved_after_it_was_asked_for(alone, runtime):
    storage = alone("ckpt://asked", raise_on_error=True)
    assert storage.find("ckpt://asked/latest") is None
    for step in (1, 2):
        state = {"value": torch.full((3,), float(step))}
        dcp.save(state, checkpoint_id=f"ckpt://asked/step-{step}", storage_writer=storage)
        if step == 1:
            assert storage.find("ckpt://asked/latest") == 1
    found = loaded(storage, "ckpt://asked/latest", value=torch.zeros(3))
    assert torch.equal(found["value"], torch.full((3,), 2.0))


def test_a_step_by_number_that_is_not_there_is_named(alone, runtime, caplog):
    storage = alone("ckpt://asked", raise_on_error=True)
    assert storage.find("ckpt://asked/latest") is None
    assert not [each for each in caplog.messages if "find" in each]
    state = {"value": torch.ones(3)}
    dcp.save(state, checkpoint_id="ckpt://asked/step-20", storage_writer=storage)
    assert storage.find("ckpt://asked/step-9999") is None
    (warning,) = [each for each in caplog.messages if "find" in each]
    assert "find ckpt://asked/step-9999: " in warning
    assert "step 9999 is not there; the newest seen is step 20" in warning
    assert storage.find("ckpt://asked/step-20") == 20


@pytest.mark.parametrize("is_lost", [False, True], ids=["in-memory", "on-storage"])
@pytest.mark.parametrize("asks", [False, True])
def test_a_job_that_is_saved_to_before_it_was_asked_names_what_it_leaves(
    alone, runtime, tmp_path, programs, caplog, is_lost, asks
):
    options = {"dir": str(tmp_path / "dir"), "save_storage_interval": 1}
    storage = libckpt.dcp.Storage("ckpt://job", **options)
    dcp.save({"w": torch.ones(4)}, checkpoint_id="ckpt://job/step-3", storage_writer=storage)
    storage.session().wait(3, "durable")
    storage.session().abandon()
    assert not [message for message in caplog.messages if "begins anew" in message]
    if is_lost:
        subprocess.run([programs / "ckpt", "stop"], check=True, timeout=60, capture_output=True)
    storage = libckpt.dcp.Storage("ckpt://job", **options)
    if asks:
        assert storage.find() == 3
    dcp.save({"w": torch.ones(4)}, checkpoint_id="ckpt://job/step-4", storage_writer=storage)
    dcp.save({"w": torch.ones(4)}, checkpoint_id="ckpt://job/step-5", storage_writer=storage)
    left = [message for message in caplog.messages if "begins anew" in message]
    place = "on storage" if is_lost else "in memory"
    assert left == [] if asks else len(left) == 1
    assert asks or f"job job begins anew, and leaves step 3 behind, which is {place}" in left[0]
    assert asks or "call find() or load ckpt://job/latest before the first save" in left[0]
    storage.session().close()


def test_a_load_of_nothing_says_so(alone, runtime):
    with pytest.raises(BaseException, match="nothing to restore|no step|not found"):
        loaded(alone(), "ckpt://nothing/latest", value=torch.zeros(3))


def test_files_of_others_stay_in_a_folder_that_is_saved_again(alone, tmp_path):
    storage, path = alone(), tmp_path / "step-1"
    dcp.save({"value": torch.ones(3)}, checkpoint_id=path, storage_writer=storage)
    (path / "config.json").write_text("{}")
    dcp.save({"value": torch.zeros(3)}, checkpoint_id=path, storage_writer=storage)
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp", "config.json"]


@pytest.mark.parametrize(
    ("checkpoint_id", "told"),
    [
        ("ckpt://job/100", "with the number of the step"),
        ("ckpt:///step-1", "with the number of the step"),
        ("ckpt://refused/latest", "say which step it is"),
        ("s3://bucket/step-1", "its own FsspecWriter"),
    ],
)
def test_an_id_that_makes_no_sense_is_refused(alone, runtime, checkpoint_id, told):
    # DCP's own exception is none that `except Exception` catches.
    with pytest.raises(BaseException, match=told):
        dcp.save({"value": torch.ones(1)}, checkpoint_id=checkpoint_id, storage_writer=alone())


@pytest.mark.parametrize("is_default", [False, True])
@pytest.mark.parametrize("call", ["find", "session"])
def test_a_path_is_no_job_to_be_asked(alone, runtime, tmp_path, call, is_default):
    storage, asked = (alone(tmp_path), []) if is_default else (alone(), [tmp_path])
    with pytest.raises(libckpt.errors.InvalidArgument, match="which is no job: give"):
        getattr(storage, call)(*asked)


def test_disabled_leaves_stock_folders(alone, runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    storage = alone("ckpt://disabled", raise_on_error=True)
    path = tmp_path / "step-1"
    for checkpoint_id in (path, "ckpt://disabled/step-1"):
        dcp.save({"value": torch.ones(3)}, checkpoint_id=checkpoint_id, storage_writer=storage)
    assert storage.find("ckpt://disabled/latest") is None
    assert not (tmp_path / ".libckpt").exists()
    assert torch.equal(loaded(storage, path, value=torch.zeros(3))["value"], torch.ones(3))


def test_a_save_that_fails_is_logged_and_training_goes_on(alone, runtime, caplog):
    storage = alone("ckpt://failing")
    state = {"value": torch.ones(3, dtype=torch.complex128)}
    dcp.save(state, checkpoint_id="ckpt://failing/step-1", storage_writer=storage)
    assert 'save ckpt://failing/step-1: dcp: "value" is of torch.complex128' in caplog.text
    assert storage.find("ckpt://failing/latest") is None
    state = {"value": torch.ones(3)}
    dcp.save(state, checkpoint_id="ckpt://failing/step-2", storage_writer=storage)
    assert storage.find("ckpt://failing/latest") == 2


@pytest.fixture
def ranks(tmp_path, programs, trainer):
    """Jobs of trainers/dcp_ranks.py on nodes of their own."""
    from test_ranks import Cluster

    found = Cluster(tmp_path, programs, trainer)
    found.program = "dcp_ranks.py"
    yield found
    left = found.close()
    assert "processes" not in left, left


def losses_of(log):
    from test_ranks import said

    return [float(each) for each in said(log, 0, "loss")[0]]


def check_began(log, count, before, step_min):
    """All ranks began with what `before`, a log, had after a step that is not older than that."""
    from test_ranks import began, states

    step, digest = began(log, 0)
    assert [began(log, rank) for rank in range(count)] == [(step, digest)] * count
    assert states(before)[step] == digest
    assert step >= step_min
    assert f"libckpt: resumes step {step} from " in log
    return step


@needs_torch(2, 13)
def test_fsdp2_is_killed_and_goes_on_through_dcp_with_two_ranks(ranks, tmp_path):
    from test_ranks import kill_all, said

    whole = ranks.start("AB", "whole", 8).finish()
    job = ranks.start("AB", "job", 8, HOLD_AT="5")
    job.wait_until_said("r0 made 5 ")
    before = job.log.read_text()
    kill_all(before, 2, job)
    log = ranks.start("AB", "job", 8).finish()
    check_began(log, 2, before, 4)
    assert [said(log, rank, "weights") for rank in (0, 1)] == [
        said(whole, rank, "weights") for rank in (0, 1)
    ]
    assert losses_of(log) == losses_of(whole)


@needs_torch(2, 7)  # FSDP2 without a GPU.
@pytest.mark.slow
def test_fsdp2_goes_on_with_other_ranks_and_after_a_node_is_lost(ranks, tmp_path):
    """2 -> 1 -> 2, from memory; then stock DCP goes on from the newest folder."""
    import numpy
    from test_ranks import kill_all, process_of, began

    folders = tmp_path / "folders"
    whole = ranks.start("AB", "whole", 16).finish()
    job = ranks.start("AB", "job", 16, folders, HOLD_AT="5")
    job.wait_until_said("r0 made 5 ")
    two = job.log.read_text()
    ranks.lose("B", process_of(two, 1))  # With the only copy of its own rows, but for its peer's.
    os.kill(process_of(two, 0), 9)
    job.wait()
    job = ranks.start("A", "job", 16, folders, HOLD_AT="9")
    job.wait_until_said("r0 made 9 ")
    one = job.log.read_text()
    check_began(one, 1, two, 4)
    kill_all(one, 1, job)
    log = ranks.start("AC", "job", 16, folders).finish()
    check_began(log, 2, one, 8)
    assert numpy.allclose(losses_of(log), losses_of(whole), rtol=1e-4)

    assert sorted(each.name for each in folders.glob("step-*")) == [
        "step-12", "step-16", "step-4", "step-8"
    ]  # fmt: skip
    stock = ranks.start("AC", "other", 18, folders, STOCK="1").finish()
    step, digest = began(stock, 0)
    assert step == 16
    assert f"r0 weights {digest}" in log


@needs_torch(2, 7)  # FSDP2 without a GPU.
@pytest.mark.slow
def test_the_example_runs_as_printed():
    example = pathlib.Path(__file__).parents[2] / "examples" / "dcp_trainer.py"
    done = subprocess.run([sys.executable, example, "--demo"], capture_output=True, text=True,
                          timeout=900, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rank 1 is killed at step 14" in done.stdout
    assert "1 rank(s), from step 25" in done.stdout
    assert "the weights are the same" in done.stdout
