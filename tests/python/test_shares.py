"""Goal: no tensor is captured by nobody, and none is taken for another rank's that is not the same.

Method: ranks as threads over one Store in memory, whose Shares see modules that are alike, differ
in one tensor, or lack one; digests against every way in which a few bytes can differ.
"""

import json
import threading

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402
from libckpt import _digest, _launch, _ranks, _shares, errors  # noqa: E402


def on_ranks(count, work):
    """What `work(ranks)` answers, or raises, on each of so many ranks at the same time."""
    store = torch.distributed.HashStore()
    answers = [None] * count

    def run(rank):
        try:
            answers[rank] = work(_ranks.Ranks("job", rank, count, store, "prefix"))
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def make_items(change=lambda rank, model: None, rank=0):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)],
                                torch.nn.BatchNorm1d(16))  # fmt: skip
    change(rank, model)
    return {"model": model, "own": {"here": torch.ones(2)}, "rng": libckpt.RNG()}


def captured(count, change=lambda rank, model: None):
    """By rank, (owner or None by name as the structure tells, names of the tensors it captures)."""

    lock = threading.Lock()  # Torch's generator is one for all threads.

    def work(ranks):
        with lock:
            items = make_items(change, ranks.rank)
        structure, tensors, _ = _shares.Shares(ranks).take(items, True)
        told = json.loads(structure)
        owners = told.pop("libckpt.shares")
        names = [node["t"] for node in told["model"]["s"]["d"].values()]
        assert owners.keys() <= set(names)
        return {name: owners.get(name) for name in names}, set(tensors)

    return on_ranks(count, work)


@pytest.mark.parametrize("count", [2, 3])
def test_each_tensor_of_a_module_is_captured_by_the_rank_that_all_say(count):
    by_rank = captured(count)
    owners = by_rank[0][0]
    for rank, (said, names) in enumerate(by_rank):
        assert said == owners
        assert {name for name, owner in owners.items() if owner == rank} == {
            name for name in names if name.startswith("model")
        }
        assert {"own.here", "rng.torch"} <= names
    assert set(owners.values()) == set(range(count))
    buffers = [name for name in owners if "running" in name or "batches" in name]
    assert len(buffers) == 3
    assert all(owners[name] == 0 for name in buffers)


def test_what_differs_each_rank_captures_itself():
    def change(rank, model):
        with torch.no_grad():
            model[2].weight[3, 5] += rank * 1e-6

    for said, names in captured(3, change):
        assert said["model.2.weight"] is None
        assert "model.2.weight" in names
        assert said["model.2.bias"] is not None


def test_what_a_rank_has_not_the_others_capture_themselves():
    def change(rank, model):
        if rank == 1:
            model[4].bias = None

    for rank, (said, names) in enumerate(captured(3, change)):
        assert said.get("model.4.bias") is None
        assert ("model.4.bias" in names) == (rank != 1)


def test_tied_tensors_go_to_one_rank():
    def change(_, model):
        model[5].weight = model[0].weight

    said, _ = captured(2, change)[0]
    assert said["model.5.weight"] == said["model.0.weight"]


def test_a_rank_that_says_nothing_leaves_the_others_with_all_of_theirs(monkeypatch):
    monkeypatch.setattr(_ranks, "SAY_SECONDS", 0.05)

    def work(ranks):
        if ranks.rank == 1:
            return None
        _, tensors, _ = _shares.Shares(ranks).take(make_items(), True)
        return set(tensors)

    names = on_ranks(2, work)[0]
    assert {f"model.{name}" for name in make_items()["model"].state_dict()} <= names


def test_what_one_rank_cannot_do_ends_it_for_all():
    def work(ranks):
        ranks.agree("start", None)
        ranks.agree("end", errors.Corruption("bad bytes") if ranks.rank == 1 else None)

    found = on_ranks(3, work)
    assert [type(error) for error in found] == [errors.Corruption] * 3
    assert str(found[0]) == str(found[2]) == "rank 1: bad bytes"
    assert str(found[1]) == "bad bytes"


def test_nodes_get_one_list_and_one_secret(tmp_path):
    def work(ranks):
        node = ranks.rank // 2
        options = {"job": "job", "node": "AB"[node], "interface": f"10.0.0.{node}",
                   "port": 7000 + node, "runtime_dir": str(tmp_path)}  # fmt: skip
        _launch._exchange(options, ranks)
        return options

    told = on_ranks(4, work)
    assert told[0]["nodes"] == ["A@10.0.0.0:7000/A", "B@10.0.0.1:7001/B"]
    assert all(one["nodes"] == told[0]["nodes"] for one in told)
    assert len({one["incarnation"] for one in told}) == 1
    secret = tmp_path / "secret-job"
    assert all(one["secret_file"] == str(secret) for one in told)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(secret.read_text()) == 64
    # A later list is a newer one, whatever the clock says, and so is the end of all lists.
    later = on_ranks(4, work)[0]["incarnation"]
    alone, _ = _launch.complete({"job": "job", "runtime_dir": str(tmp_path)})
    assert told[0]["incarnation"] < later < alone["incarnation"]
    other, _ = _launch.complete({"job": "other", "runtime_dir": str(tmp_path)})
    assert "incarnation" not in other


@pytest.mark.parametrize(
    ("nodes", "secrets", "problem"),
    [("AA", (False, False), "LIBCKPT_NODE"), ("AB", (True, False), "secret_file")],
)
def test_nodes_that_cannot_be_one_job_are_told_why(tmp_path, nodes, secrets, problem):
    def work(ranks):
        options = {"job": "job", "node": nodes[ranks.rank], "interface": f"10.0.0.{ranks.rank}",
                   "runtime_dir": str(tmp_path)}  # fmt: skip
        if secrets[ranks.rank]:
            options["secret_file"] = "/a/secret"
        _launch._exchange(options, ranks)

    for error in on_ranks(2, work):
        assert isinstance(error, errors.InvalidArgument)
        assert problem in str(error)


def test_a_node_that_others_cannot_see_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(_launch, "_address", lambda host: "127.0.0.1")
    monkeypatch.delenv("LIBCKPT_INTERFACE", raising=False)

    def work(ranks):
        options = {"job": "job", "node": "AB"[ranks.rank], "runtime_dir": str(tmp_path)}
        _launch._exchange(options, ranks)

    for error in on_ranks(2, work):
        assert isinstance(error, errors.InvalidArgument)
        assert "LIBCKPT_INTERFACE" in str(error)


def test_a_file_that_one_rank_saves_waits_for_no_other(runtime, tmp_path, monkeypatch):
    import libckpt.torch
    from libckpt import _outbox

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    libckpt.torch.save({"a": torch.ones(3)}, tmp_path / "model.pt")
    assert torch.equal(libckpt.torch.load(tmp_path / "model.pt")["a"], torch.ones(3))
    for box in list(_outbox._outboxes):
        box.close()  # Else it would start the daemon again that the test ends.
    libckpt.torch._boxes.clear()


def test_a_disabled_session_looks_at_no_checkpoint_of_other_ranks(job, tmp_path):
    step = tmp_path / "dir" / "step-000000001"
    step.mkdir(parents=True)
    manifest = {"format": "libckpt-manifest", "timeline": 1, "step": 1, "shards": [{}, {}]}
    (step / "manifest.json").write_text(json.dumps(manifest))
    session = job(dir=tmp_path / "dir", disable=True)
    assert session.restore_or({"a": {}}, default="nothing") == "nothing"


def test_a_digest_tells_any_two_bytes_apart():
    base = torch.arange(40, dtype=torch.uint8)
    seen = {int(_digest.of_bytes(base))}
    for place in range(40):
        for bit in range(8):
            changed = base.clone()
            changed[place] ^= 1 << bit
            seen.add(int(_digest.of_bytes(changed)))
    for one, other in [(0, 4), (3, 7), (35, 39), (36, 37)]:
        swapped = base.clone()
        swapped[[one, other]] = base[[other, one]]
        seen.add(int(_digest.of_bytes(swapped)))
    # Signs that both change, what is cut off, and blocks that change places.
    signs = base.clone()
    signs[[3, 7]] ^= 0x80
    seen.update(int(_digest.of_bytes(part)) for part in (signs, base[:-1], base[:36], base[:0]))
    assert len(seen) == 1 + 320 + 4 + 4
    blocks = torch.zeros(12 << 20, dtype=torch.uint8)
    blocks[5] = 1
    moved = blocks.roll(4 << 20)
    assert int(_digest.of_bytes(blocks)) != int(_digest.of_bytes(moved))


@pytest.mark.parametrize("kind", [torch.bool, torch.bfloat16, torch.complex64, torch.float8_e4m3fn])
def test_a_digest_is_of_the_bytes_whatever_they_lie_in(kind):
    content = torch.randint(0, 2, (3, 5)).to(kind)
    apart = torch.zeros(10, 3).to(kind)[::2].t()
    apart.copy_(content)
    odd = torch.empty(content.nbytes + 1, dtype=torch.uint8)[1:]
    odd.copy_(_digest.flat_bytes(content))
    digests = _digest.of_tensors({"whole": content, "strided": apart})
    assert digests["whole"] == digests["strided"] == int(_digest.of_bytes(odd))
