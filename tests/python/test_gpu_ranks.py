"""Goal: the shares of a restore go round by NCCL only if all ranks can, all of them take the same
way, and what NCCL fails at is sent again, all of it, in the usual way.

Method: ranks as threads over one Store in memory. A fake of the library's class copies between
their tensors, which lie on the host and are said to lie on GPUs; it fails where a test wants it.
"""

import ctypes
import logging
import threading

import pytest

torch = pytest.importorskip("torch")

from libckpt import _native, errors  # noqa: E402
from libckpt.adapters.torch import _group, _gpu_ranks  # noqa: E402
from libckpt.core import _ranks  # noqa: E402

SIZES = (5, 0, 70, 300)  # The parts of each source.


class FakeNccl:
    """Shared by all ranks, in place of NCCL and its fabric."""

    def __init__(self, count):
        self.count, self.barrier = count, threading.Barrier(count)
        self.fails = {}  # By (rank, call), the error.
        self.is_loud = set()  # The ranks whose work does not end.
        self.sent, self.opened, self.closed = [], 0, 0
        self.roots = {}

    def opened_by(self, rank):
        fake = self

        class GpuRanks:
            def __init__(self, gpu, library, patience):
                fake.opened += 1
                fake.fail(rank, "open")

            def make_id(self, seconds):
                fake.fail(rank, "make_id")
                return bytes(range(128))

            def join(self, own, ranks, given, seconds):
                assert (own, ranks, given) == (rank, fake.count, bytes(range(128)))
                fake.fail(rank, "join")

            def broadcast(self, root, parts, stream, seconds):
                fake.fail(rank, "broadcast")
                if rank == root:
                    fake.roots[root] = parts
                    fake.sent.append((root, sum(size for _, size in parts)))
                fake.meet()
                for (to, size), (source, _) in zip(parts, fake.roots[root], strict=True):
                    ctypes.memmove(to, source, size)
                fake.meet()
                if "damage" in {call for own, call in fake.fails if own == rank}:
                    raise errors.Corruption("part 1 of 3")

            def is_quiet(self):
                return rank not in fake.is_loud

            def close(self, seconds):
                fake.closed += 1

        return GpuRanks

    def meet(self):
        try:
            self.barrier.wait(10)
        except threading.BrokenBarrierError as error:
            raise errors.Unavailable("it did not end in time") from error

    def fail(self, rank, call):
        """At a broadcast the others learn of it, as by their deadline."""
        if (rank, call) in self.fails:
            self.barrier.abort()
            raise self.fails[rank, call]


class Scene:
    """So many ranks that hand round a share of each."""

    def __init__(self, monkeypatch, count=3):
        self.count, self.nccl, self.usual = count, FakeNccl(count), []
        self.hosts = set()  # Indices of parts that lie on the host of one rank.
        self.local = threading.local()
        monkeypatch.setattr(_gpu_ranks, "gpu_of", self.gpu_of)
        monkeypatch.setattr(_gpu_ranks, "stream_of", lambda gpu: 0)
        monkeypatch.setattr(_native, "GpuRanks", self.open)
        self.answers = [None] * count

    def open(self, *arguments):
        return self.nccl.opened_by(self.local.rank)(*arguments)

    def gpu_of(self, part):
        return None if part.data_ptr() in self.hosts else self.local.gpu

    def content(self, source):
        return [torch.arange(size).add(source * 7).to(torch.uint8) for size in SIZES]

    def run(self, gpu=0, host=()):
        store = torch.distributed.HashStore()
        scene = self

        class Group(_group.Group):
            def __init__(self):
                pass

            @staticmethod
            def broadcast(source, rank, parts):
                scene.usual.append((source, rank, [part.numel() for part in parts]))
                if rank != source:
                    for part, right in zip(scene.parts[rank][source], scene.content(source)):
                        part.copy_(right)

        self.parts = [
            {source: self.content(source) if source == rank else
             [torch.zeros(size, dtype=torch.uint8) for size in SIZES]
             for source in range(self.count)}
            for rank in range(self.count)
        ]  # fmt: skip
        self.hosts = {self.parts[rank][source][index].data_ptr() for rank, source, index in host}

        def work(rank):
            self.local.rank, self.local.gpu = rank, gpu
            ranks = _ranks.Ranks("job", rank, self.count, store, "prefix", Group())
            try:
                ranks.hand_round(self.parts[rank])
            except Exception as error:
                self.answers[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self

    def is_right(self):
        return all(
            torch.equal(part, right)
            for own in self.parts
            for source in own
            for part, right in zip(own[source], self.content(source), strict=True)
        )


@pytest.fixture
def scene(monkeypatch):
    monkeypatch.delenv("LIBCKPT_NCCL", raising=False)
    return Scene(monkeypatch)


def warnings(caplog):
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_shares_on_gpus_go_by_nccl_and_nothing_else_does(scene, caplog):
    scene.run()
    assert scene.answers == [None] * 3 and scene.is_right()
    assert scene.usual == [] and warnings(caplog) == []
    assert scene.nccl.sent == [(source, sum(SIZES)) for source in range(3)]
    assert scene.nccl.opened == scene.nccl.closed == 3


def test_a_part_on_the_host_of_one_rank_goes_the_usual_way(scene):
    scene.run(host=[(1, 2, 3)])
    assert scene.answers == [None] * 3
    assert sorted(scene.usual) == [(2, rank, [300]) for rank in range(3)]
    assert scene.nccl.sent == [(0, 375), (1, 375), (2, 75)]


@pytest.mark.parametrize("gpu, setting", [(None, None), (0, "off"), (0, "OFF"), (0, "0")])
def test_without_gpus_or_by_a_setting_nothing_is_opened_or_said(
    scene, monkeypatch, caplog, gpu, setting
):
    if setting:
        monkeypatch.setenv("LIBCKPT_NCCL", setting)
    scene.run(gpu=gpu)
    assert scene.answers == [None] * 3 and scene.is_right()
    assert len(scene.usual) == 9 and scene.nccl.opened == 0 and warnings(caplog) == []


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("call", ["open", "join", "broadcast", "damage", "make_id"])
def test_a_send_that_fails_on_one_rank_is_made_again_on_all_and_logged(scene, caplog, rank, call):
    if call == "make_id" and rank != 0:
        pytest.skip("rank 0 makes the id")
    kind = errors.Unsupported if call == "open" else errors.Unavailable
    scene.nccl.fails[rank, call] = kind("no such fabric")
    scene.run()
    assert scene.answers == [None] * 3 and scene.is_right()
    assert sorted(each[:2] for each in scene.usual) == [(s, r) for s in range(3) for r in range(3)]
    said = warnings(caplog)
    assert len(said) == 1 and "process group" in said[0]
    if call in ("open", "join", "make_id"):
        assert f"rank {rank}" in said[0] and "no such fabric" in said[0]
        assert scene.nccl.sent == []


def test_work_that_may_still_write_ends_the_restore_on_all_ranks(scene):
    scene.nccl.fails[1, "broadcast"] = errors.Unavailable("it did not return in time")
    scene.nccl.is_loud.add(1)
    scene.run()
    assert [type(answer) for answer in scene.answers] == [errors.Unavailable] * 3
    assert all("the GPU of rank 1" in str(answer) for answer in scene.answers)
    assert scene.usual == []


def test_ranks_that_differ_in_sizes_use_no_nccl():
    said = {"is_off": False, "problem": None, "on_gpu": "3", "sizes": 1}
    decided = _gpu_ranks.decide([said, said | {"sizes": 2}], None)
    assert decided["on_gpus"] == "0" and "different sizes" in decided["reason"]
    assert _gpu_ranks.decide([said, said | {"on_gpu": "4"}], None)["on_gpus"] == "0"


def test_batches_keep_to_the_limits_of_one_broadcast(monkeypatch):
    monkeypatch.setattr(_gpu_ranks, "BYTES", 100)
    monkeypatch.setattr(_gpu_ranks, "PARTS", 4)
    parts = [torch.zeros(size, dtype=torch.uint8) for size in (250, 0, 3, 1, 1, 1, 1, 1, 100)]
    found = [[piece.numel() for piece in pieces] for pieces in _gpu_ranks.batches(parts)]
    assert sum(map(sum, found)) == 358
    assert all(len(sizes) <= 4 and sum(sizes) <= 100 for sizes in found)


def test_the_library_that_pip_has_put_there_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(_gpu_ranks.importlib.util, "find_spec", lambda name: None)
    assert _gpu_ranks.library() == ""

    class Spec:
        submodule_search_locations = [str(tmp_path / "none"), str(tmp_path)]

    monkeypatch.setattr(_gpu_ranks.importlib.util, "find_spec", lambda name: Spec)
    assert _gpu_ranks.library() == ""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnccl.so.2").write_text("")
    assert _gpu_ranks.library() == str(tmp_path / "lib" / "libnccl.so.2")


def test_the_real_class_says_what_a_machine_lacks(monkeypatch):
    monkeypatch.setenv("CKPT_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    with pytest.raises(errors.Unsupported, match="NVIDIA driver|without GPU support"):
        _native.GpuRanks(0, "", 1.0)


def test_no_call_lasts_as_long_as_ranks_wait_for_one_another():
    # A rank that fails waits while another ends one broadcast, and fails at the next.
    assert 2 * _gpu_ranks.SECONDS + _gpu_ranks.PATIENCE < _ranks.SAY_SECONDS
