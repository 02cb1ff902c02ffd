"""Goal: a step in the memory of a job is inspected, exported, compared and copied as a checkpoint
is, also after its trainers have died; and what cannot be read is refused in words.

Method: sessions save to memory, or two ranks save parts of tensors; the commands run as programs
beside them, and stock readers or other sessions load what they made.
"""

import json
import shutil
import threading

import numpy
import pytest

from libckpt import Array

safetensors_numpy = pytest.importorskip("safetensors.numpy")

ROWS, COLUMNS = 12, 400_000  # Several Chunks.
WHOLE = numpy.arange(ROWS * COLUMNS, dtype=numpy.float32).reshape(ROWS, COLUMNS)


def save(session, step):
    session.save(step, {"weights": WHOLE + step, "epoch": step}, wait=30)
    session.wait(step, "committed")


@pytest.fixture
def trained(job):
    session = job("in_memory")
    save(session, 1)
    save(session, 2)
    return session


def save_parts(job, **options):
    """Two ranks, each with some rows of a tensor, and a step that both have."""
    ranks = [job("parts", rank=rank, world_size=2, **options) for rank in (0, 1)]

    def save_part(rank):
        begin, end = ((0, 5), (5, ROWS))[rank]
        part = Array("rows", WHOLE[begin:end], global_shape=WHOLE.shape, offset=(begin, 0))
        ranks[rank].save(7, {"rank": rank}, arrays=[part], wait=30)
        ranks[rank].wait(7, "committed")

    threads = [threading.Thread(target=save_part, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ranks


def test_the_newest_step_is_listed_and_exported(trained, ckpt, tmp_path):
    listed = json.loads(ckpt("inspect", "memory:in_memory", "--json"))
    assert (listed["job"], listed["step"]) == ("in_memory", 2)
    assert listed["directory"] == "memory:in_memory/step-000000002"
    assert [tensor["name"] for tensor in listed["tensors"]] == ["weights"]
    out = tmp_path / "now.safetensors"
    assert "1 tensor" in ckpt("export", "memory:in_memory", str(out))
    assert numpy.array_equal(safetensors_numpy.load_file(out)["weights"], WHOLE + 2)
    assert trained.save(3, {"weights": WHOLE + 3, "epoch": 3}, wait=30)


def test_it_is_read_after_its_trainer_has_died(trained, ckpt, tmp_path):
    trained.abandon()
    out = tmp_path / "last.safetensors"
    ckpt("export", "memory:in_memory/step-000000002", str(out))
    assert numpy.array_equal(safetensors_numpy.load_file(out)["weights"], WHOLE + 2)


def test_stock_torch_loads_what_comes_of_pieces(job, ckpt, tmp_path):
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    ranks = save_parts(job)
    whole = torch.from_numpy(WHOLE.copy())
    ckpt("export", "memory:parts", str(tmp_path / "m.pt"), "--format", "torch")
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert torch.equal(loaded["rows"], whole)
    ckpt("export", "memory:parts", str(tmp_path / "dcp"), "--format", "dcp")
    state = {"rows": torch.zeros_like(whole)}
    checkpoint.load(state, checkpoint_id=str(tmp_path / "dcp"))
    assert torch.equal(state["rows"], whole)
    ckpt("export", "memory:parts", str(tmp_path / "hf"), "--format", "hf")
    found = safetensors_numpy.load_file(tmp_path / "hf" / "model.safetensors")
    assert numpy.array_equal(found["rows"], WHOLE)
    assert len(ranks) == 2


def test_a_copy_is_a_checkpoint_from_which_the_job_goes_on(job, ckpt, tmp_path):
    for rank in save_parts(job):
        rank.abandon()
    there = str(tmp_path / "there")
    assert "2 ranks" in ckpt("cp", "memory:parts", there)
    assert "there already" in ckpt("cp", "memory:parts", there)
    assert "good " in ckpt("verify", there)
    assert "all the same" in ckpt("diff", there, "memory:parts")
    ckpt("cp", there, str(tmp_path / "again"))
    ckpt("drop", "parts")
    with job("parts", dir=there) as session:
        rows = numpy.zeros_like(WHOLE)
        part = Array("rows", rows, global_shape=WHOLE.shape, offset=(0, 0))
        assert session.restore({}, arrays=[part]).step == 7
        assert numpy.array_equal(rows, WHOLE)


def test_another_checkpoint_of_the_step_is_left_alone(job, ckpt, tmp_path):
    first = job("in_memory", dir=str(tmp_path / "run"), save_storage_interval=1)
    save(first, 1)
    first.wait(1, "durable")
    assert "stores its steps there by itself" in ckpt(
        "cp", "memory:in_memory", str(tmp_path / "run"), status=2
    )
    there = tmp_path / "there"
    ckpt("cp", "memory:in_memory", str(there))
    first.abandon()
    ckpt("drop", "in_memory")
    shutil.rmtree(tmp_path / "run")
    second = job("in_memory", dir=str(tmp_path / "run"))
    save(second, 1)
    told = ckpt("cp", "memory:in_memory", str(there), status=2)
    assert "another run" in told
    assert "good " in ckpt("verify", str(there))


def test_a_difference_is_found_between_memory_and_storage(job, ckpt, tmp_path):
    session = job("in_memory", dir=str(tmp_path / "run"), save_storage_interval=1)
    save(session, 1)
    session.wait(1, "durable")
    assert "all the same" in ckpt("diff", str(tmp_path / "run"), "memory:in_memory")
    session.save(2, {"weights": WHOLE + 2, "epoch": 2}, wait=30)
    session.wait(2, "durable")
    step = str(tmp_path / "run" / "step-000000001")
    assert "weights" in ckpt("diff", step, "memory:in_memory", status=1)


def test_what_cannot_be_read_is_refused_in_words(runtime, job, ckpt, tmp_path):
    out = str(tmp_path / "out")
    assert "no daemon runs" in ckpt("inspect", "memory:nothing", status=1)
    with job("in_memory") as session:
        assert "not there" in ckpt("inspect", "memory:in_memory", status=1)
        save(session, 1)
        assert "holds nothing of it" in ckpt("export", "memory:another", out, status=1)
        assert "step 9 of job in_memory" in ckpt(
            "export", "memory:in_memory/step-000000009", out, status=1
        )
        assert "memory:JOB" in ckpt("inspect", "memory:", status=2)
        assert "directory or a bucket" in ckpt("export", "memory:in_memory", "memory:x", status=2)
        assert "the job's own saves" in ckpt("cp", "memory:in_memory", "memory:x", status=2)
        for command in ("ls", "verify"):
            assert "`ckpt status` shows" in ckpt(command, "memory:in_memory", status=2)
    assert not (tmp_path / "out").exists()
