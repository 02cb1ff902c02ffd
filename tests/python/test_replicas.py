"""Goal: no tensor is captured by nobody, and none is taken for another rank's that is not the same.

Method: ranks as threads over one Store in memory, whose Replicas see modules that are declared the
same, differ in one tensor, drift apart, or lack one; digests against every way in which a few bytes
can differ.
"""

import concurrent.futures
import json
import threading

import pytest

torch = pytest.importorskip("torch")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import libckpt  # noqa: E402
from libckpt import errors
from libckpt.adapters.torch import _digest
from libckpt.core import _launch, _ranks, _replicas, _rounds, _structure  # noqa: E402


def on_ranks(count, work):
    """The answers or errors of `work(ranks)`, on each of so many ranks at the same time."""
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


def wrapped(model, **options):
    """In a DistributedDataParallel that talks to nobody."""
    ddp = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(ddp)
    ddp.module = model
    ddp.broadcast_buffers, ddp.parameters_to_ignore = True, set()
    for name, value in options.items():
        setattr(ddp, name, value)
    return ddp


def make_items(change=lambda rank, model: None, rank=0, wrap=wrapped):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)],
                                torch.nn.BatchNorm1d(16))  # fmt: skip
    change(rank, model)
    return {"model": wrap(model), "own": {"here": torch.ones(2)}, "rng": libckpt.RNG()}


class Rank:
    """A rank whose saves are taken apart, one after the other."""

    def __init__(self, ranks, items, interval=None):
        self.ranks, self.items = ranks, items
        self._replicas = _replicas.Replicas(ranks, interval)

    def take(self, step):
        """(owner or None by name as the structure tells, names of the tensors it captures)."""
        structure, tensors, _ = self._replicas.flatten(step, self.items, False)
        told = json.loads(structure)
        owners = told.pop("libckpt.shares")
        names = [node["t"] for node in _structure.tensor_nodes(told)]
        assert owners.keys() <= set(names)
        return {name: owners.get(name) for name in names}, set(tensors)


class Ranks:
    """Threads in lock step: each call of `at` is one step of all of them, or of some."""

    def __init__(self, count, change=lambda rank, model: None, interval=None, wrap=wrapped):
        self._store = torch.distributed.HashStore()
        self.all = [
            Rank(_ranks.Ranks("job", rank, count, self._store, "prefix"),
                 make_items(change, rank, wrap), interval)
            for rank in range(count)
        ]  # fmt: skip

    def at(self, step, ranks=None):
        """By rank, what it took."""
        some = self.all if ranks is None else [self.all[rank] for rank in ranks]
        with concurrent.futures.ThreadPoolExecutor(len(some)) as threads:
            return list(threads.map(lambda rank: rank.take(step), some))


def captured_by(taken, name):
    return [rank for rank, (_, names) in enumerate(taken) if name in names]


@pytest.mark.parametrize("count", [2, 3])
def test_each_tensor_that_is_declared_is_captured_by_the_rank_that_all_say(count):
    by_rank = Ranks(count).at(1)
    owners = by_rank[0][0]
    for rank, (said, names) in enumerate(by_rank):
        assert said == owners
        assert {name for name, owner in owners.items() if owner == rank} == {
            name for name in names if name.startswith("model")
        }
        assert {"own.here", "rng.torch"} <= names
    assert set(owners.values()) - {None} == set(range(count))
    buffers = [name for name in owners if "running" in name or "batches" in name]
    assert len(buffers) == 3
    assert all(owners[name] == 0 for name in buffers)


def test_nothing_is_guessed_from_equal_names_and_bytes():
    for said, names in Ranks(3, wrap=lambda model: model).at(1):
        assert set(said.values()) == {None}
        assert names == set(said)


def test_buffers_that_are_not_broadcast_are_each_rank_s_own():
    for said, names in Ranks(2, wrap=lambda model: wrapped(model, broadcast_buffers=False)).at(1):
        assert said["model.6.running_mean"] is None
        assert "model.6.running_mean" in names
        assert said["model.6.weight"] is not None


def test_parameters_that_the_wrapper_ignores_are_each_ranks_own():
    ignored = {"parameters_to_ignore": {"0.weight", "6.running_var"}}
    for said, names in Ranks(2, wrap=lambda model: wrapped(model, **ignored)).at(1):
        assert {name for name, owner in said.items() if owner is None and "model" in name} == {
            "model.0.weight", "model.6.running_var"
        }  # fmt: skip
        assert {"model.0.weight", "model.6.running_var"} <= names


def test_the_state_of_declared_parameters_is_shared_and_no_other():
    ranks = Ranks(2)
    for rank in ranks.all:
        other = torch.nn.Parameter(torch.ones(3))
        parameters = [*rank.items["model"].parameters(), other]
        rank.items["optimizer"] = torch.optim.Adam(parameters)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        rank.items["optimizer"].step()
    for said, _ in ranks.at(1):
        states = {name: owner for name, owner in said.items() if name.startswith("optimizer.")}
        unshared = {name for name, owner in states.items() if owner is None}
        assert len(states) > 40
        assert unshared == {f"optimizer.state.14.{k}" for k in ("step", "exp_avg", "exp_avg_sq")}


def test_a_tensor_that_differs_is_named_and_each_rank_captures_its_own(caplog):
    def change(rank, model):
        with torch.no_grad():
            model[2].weight[3, 5] += rank * 1e-6

    for said, names in Ranks(3, change).at(1):
        assert said["model.2.weight"] is None
        assert "model.2.weight" in names
        assert said["model.2.bias"] is not None
    assert '"model.2.weight" differ(s) between ranks' in caplog.text


def test_a_tensor_that_one_rank_lacks_is_captured_by_each_of_the_others():
    def change(rank, model):
        if rank == 1:
            model[4].bias = None

    for rank, (said, names) in enumerate(Ranks(3, change).at(1)):
        assert said.get("model.4.bias") is None
        assert ("model.4.bias" in names) == (rank != 1)


def test_room_is_asked_for_what_is_there_where_nothing_is_divided():
    # More would have the Slots of an earlier life made anew, which a restore waits for.
    items = {"own": {"large": torch.ones(1000), "small": torch.ones(10)}}

    def room(ranks):
        return _replicas.Replicas(ranks).expected_bytes(items, (), False)

    assert on_ranks(2, room) == [4040, 4040]


def test_room_is_asked_for_one_tensor_more_than_an_even_share():
    items = {"model": make_items()["model"]}
    module = items["model"].module
    share = sum(each.nbytes for each in module.parameters()) // 2
    buffers = sum(each.nbytes for each in module.buffers())

    def room(ranks):
        return _replicas.Replicas(ranks).expected_bytes(items, (), False)

    assert on_ranks(2, room) == [share + 16 * 16 * 4 + buffers] * 2


def test_tied_tensors_go_to_one_rank():
    def change(_, model):
        model[5].weight = model[0].weight

    said, _ = Ranks(2, change).at(1)[0]
    assert said["model.5.weight"] == said["model.0.weight"]


def drift(rank, name):
    with torch.no_grad():
        rank.items["model"].module.get_parameter(name).add_(1e-6)


def test_copies_that_drift_apart_are_found_at_the_next_save_to_storage(caplog):
    ranks = Ranks(3, interval="10")
    owner = ranks.at(1)[0][0]["model.2.weight"]
    drift(ranks.all[1], "2.weight")
    assert captured_by(ranks.at(5), "model.2.weight") == [owner]
    for step in range(10, 15):  # Two questions, two answers: each is heard one save later.
        taken = ranks.at(step)
    assert captured_by(taken, "model.2.weight") == [0, 1, 2]
    assert all(said["model.2.weight"] is None for said, _ in taken)
    assert len(captured_by(taken, "model.2.bias")) == 1
    assert '"model.2.weight" differ(s) between ranks' in caplog.text
    caplog.clear()
    for step in range(20, 24):  # Not again, though it still differs.
        taken = ranks.at(step)
    assert captured_by(taken, "model.2.weight") == [0, 1, 2]
    assert not caplog.records


def test_with_an_interval_in_time_rank_0_says_when(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(_rounds.time, "monotonic", lambda: now[0])
    ranks = Ranks(2, interval="1min")
    ranks.at(1)
    drift(ranks.all[1], "2.weight")
    for step in range(2, 80):
        now[0] += 2.0
        taken = ranks.at(step)
    assert captured_by(taken, "model.2.weight") == [0, 1]
    assert len(captured_by(taken, "model.2.bias")) == 1


def add_state(rank):
    model = rank.items["model"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    rank.items["optimizer"] = optimizer


def test_a_rank_that_alone_has_new_state_goes_on_and_so_do_all_others(monkeypatch, caplog):
    monkeypatch.setattr(_rounds, "WAIT_SECONDS", 0.05)
    ranks = Ranks(3)
    before = ranks.at(1)
    add_state(ranks.all[1])
    taken = ranks.at(2)
    name = "optimizer.state.model.0.weight.momentum_buffer"
    assert captured_by(taken, name) == [1]
    assert [said["model.0.weight"] for said, _ in taken] == [
        said["model.0.weight"] for said, _ in before
    ]
    assert "it captures them itself" in caplog.text
    # Nothing is shifted: what comes next is compared, and shared.
    for rank in (0, 2):
        add_state(ranks.all[rank])
    monkeypatch.setattr(_rounds, "WAIT_SECONDS", 30.0)
    for rank in ranks.all:
        rank.items["more"] = wrapped(torch.nn.BatchNorm1d(4))
    taken = ranks.at(3)
    assert len(captured_by(taken, "more.weight")) == 1
    assert len(captured_by(taken, name)) == 1


def test_a_rank_that_says_nothing_leaves_the_others_with_all_of_theirs(monkeypatch):
    monkeypatch.setattr(_rounds, "WAIT_SECONDS", 0.05)
    ranks = Ranks(2)
    _, names = ranks.at(1, [0])[0]
    model = make_items(wrap=lambda model: model)["model"]
    assert {f"model.{name}" for name in model.state_dict()} <= names
    ranks.at(1, [1])  # It answers late, and both take it up.
    ranks.at(2)
    taken = ranks.at(3)
    assert len(captured_by(taken, "model.0.weight")) == 1


def test_a_store_that_fails_costs_a_line_in_the_log(caplog):
    class Broken:
        def set(self, *_):
            raise RuntimeError("connection lost")

        check = set

    rank = Rank(_ranks.Ranks("job", 1, 2, Broken(), "prefix"), make_items())
    for step in (1, 2):
        _, names = rank.take(step)
        assert "model.0.weight" in names
    assert caplog.text.count("connection lost") == 1


def test_a_failure_of_one_rank_ends_it_for_all():
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


def test_one_rank_after_several_of_one_node_is_newer_than_they_were(tmp_path):
    def work(ranks):
        options = {"job": "job", "node": "A", "interface": "10.0.0.1", "runtime_dir": str(tmp_path)}
        _launch._exchange(options, ranks)
        return options

    several = on_ranks(2, work)
    assert "nodes" not in several[0]
    alone, _ = _launch.complete({"job": "job", "runtime_dir": str(tmp_path)})
    assert several[0]["incarnation"] == several[1]["incarnation"] < alone["incarnation"]


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
    monkeypatch.setattr(_launch, "address_towards", lambda host: "127.0.0.1")
    monkeypatch.delenv("LIBCKPT_INTERFACE", raising=False)

    def work(ranks):
        options = {"job": "job", "node": "AB"[ranks.rank], "runtime_dir": str(tmp_path)}
        _launch._exchange(options, ranks)

    for error in on_ranks(2, work):
        assert isinstance(error, errors.InvalidArgument)
        assert "LIBCKPT_INTERFACE" in str(error)


def test_a_file_that_one_rank_saves_waits_for_no_other(runtime, tmp_path, monkeypatch):
    import libckpt.torch
    from libckpt.core.files import _publish_queue

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    libckpt.torch.save({"a": torch.ones(3)}, tmp_path / "model.pt")
    assert torch.equal(libckpt.torch.load(tmp_path / "model.pt")["a"], torch.ones(3))
    for box in list(_publish_queue._queues):
        box.close()  # Else it would start the daemon again that the test ends.
    libckpt.torch._queues.by_directory.clear()


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
    digests = _digest.Digests({"whole": content, "strided": apart}).result()
    assert digests["whole"] == digests["strided"] == int(_digest.of_bytes(odd))
