"""Goal: a job is opened by all of its ranks or by none, with one reason; no rank waits for one that
could not open it.

Method: ranks as threads over one Store in memory, one of which opens nothing; an option that is
wrong on one of them; a runtime directory in which no file can be made.
"""

import types

import pytest

torch = pytest.importorskip("torch")

from libckpt import _native, errors  # noqa: E402
from libckpt.core import _launch, _registration  # noqa: E402
from test_replicas import on_ranks  # noqa: E402


def test_where_one_rank_opens_nothing_the_others_let_go_and_name_its_reason():
    dropped = []

    def make(rank):
        if rank == 1:
            raise errors.StorageError("no memory here")
        drop = lambda: dropped.append(rank)  # noqa: E731
        return types.SimpleNamespace(client=types.SimpleNamespace(drop=drop))

    answers = on_ranks(3, lambda ranks: _launch.opened(ranks, make, ranks.rank))
    assert [type(answer) for answer in answers] == [errors.StorageError] * 3
    assert [str(answer) for answer in answers] == [
        "rank 1: no memory here", "no memory here", "rank 1: no memory here",
    ]  # fmt: skip
    assert sorted(dropped) == [0, 2]


def test_each_rank_has_its_own_of_what_all_open():
    assert on_ranks(2, lambda ranks: _launch.opened(ranks, str, ranks.rank)) == ["0", "1"]


def test_an_option_that_is_wrong_on_one_rank_refuses_the_job_on_all(runtime):
    def open_one(ranks):
        options = {"job": "job", "rank": ranks.rank, "world_size": 2}
        options["replicas"] = 1 + 9 * ranks.rank
        return _launch.opened(ranks, _registration.Registration, options)

    answers = on_ranks(2, open_one)
    assert [type(answer) for answer in answers] == [errors.InvalidArgument] * 2
    assert all("option replicas" in str(answer) for answer in answers)


def test_a_runtime_directory_that_cannot_be_made_is_named_by_the_opening(tmp_path):
    (tmp_path / "file").touch()
    options = {"job": "job", "runtime_dir": str(tmp_path / "file" / "runtime"),
               "interface": "127.0.0.1"}  # fmt: skip

    def exchange(ranks):
        own = {**options, "node": f"n{ranks.rank}"}  # Two nodes keep a secret, too.
        _launch._exchange(own, ranks)
        return own["nodes"]

    zero, one = on_ranks(2, exchange)
    assert zero == one and len(zero) == 2
    with pytest.raises(errors.StorageError, match="runtime directory"):
        _native.Client({name: options[name] for name in ("job", "runtime_dir")})
