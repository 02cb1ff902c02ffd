"""Goal: a rank that waits for another one says for whom, and hears Ctrl-C meanwhile.

Method: words go through a Store of this process, in which the other rank says nothing, too late, or
in time; Ctrl-C comes while the rank sleeps between two looks.
"""

import pytest

from libckpt import errors
from libckpt.core import _ranks


class Store:
    """As a framework's; the word is there from that second on."""

    def __init__(self, there_at=float("inf"), error=None):
        self.there_at, self.error, self.now, self.on_sleep = there_at, error, 0.0, None

    def check(self, keys):
        if self.error is not None:
            raise self.error
        return self.now >= self.there_at

    def get(self, key):
        return b'["hello"]'

    def set(self, key, value):
        pass

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert 0 < seconds < 1  # Ctrl-C is heard between two looks.
        self.now += seconds
        if self.on_sleep is not None:
            self.on_sleep()


@pytest.fixture
def hear(monkeypatch):
    def hear(store):
        monkeypatch.setattr(_ranks, "time", store)
        return _ranks.Ranks("job", 1, 2, store, "prefix").exchange("node", None)

    return hear


@pytest.mark.parametrize(("there_at", "is_told"), [(0, False), (4, False), (7, True), (59, True)])
def test_a_rank_that_waits_long_says_for_whom(hear, caplog, there_at, is_told):
    assert hear(Store(there_at)) == ["hello"]
    told = "job job: rank 1 waits for rank 0 to send its node, up to 5"
    assert (told in caplog.text) == is_told
    assert caplog.text.count("waits for") == is_told


def test_a_rank_that_says_nothing_is_named_in_the_end(hear):
    with pytest.raises(errors.Unavailable, match="rank 1 waited 60 s for rank 0 to send its node"):
        hear(Store())


def test_a_store_that_is_lost_is_named(hear):
    with pytest.raises(errors.Unavailable, match="the Store by which the ranks talk is lost"):
        hear(Store(error=RuntimeError("connection reset")))


def test_ctrl_c_ends_the_wait(hear):
    store = Store()

    def interrupt():
        if store.now > 10:
            raise KeyboardInterrupt

    store.on_sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        hear(store)
    assert store.now < 11


@pytest.mark.parametrize("there_at", [0.002, 0.03, 0.26, 1.1, 3.0])
def test_a_word_that_comes_is_heard_soon(hear, there_at):
    store = Store(there_at)
    hear(store)
    assert store.now <= there_at * 17 / 16 + 0.001
