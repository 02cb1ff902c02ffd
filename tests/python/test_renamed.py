"""Goal: a restore finds what was saved under other names: modules, the state of optimizers, arrays,
parts that become items; and says what it cannot place.

Method: small models are saved under old names, and restored under new ones, from memory and from a
path alike. Each element is compared.
"""

import numpy
import pytest
from test_arrays import at_once

import libckpt
from libckpt.core import _names

torch = pytest.importorskip("torch")


class Old(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        self.head = torch.nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.encoder(inputs))


class New(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        self.classifier = torch.nn.Linear(4, 2)


RULES = {"model.encoder": "net.backbone", "model.head": "net.classifier", "model": "net"}


def trained():
    torch.manual_seed(3)
    model = Old()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def assert_moved(model, other):
    there, here = model.state_dict(), other.state_dict()
    for name, tensor in there.items():
        moved = name.replace("encoder.", "backbone.").replace("head.", "classifier.")
        assert torch.equal(tensor, here[moved]), name
    assert len(there) == len(here)


@pytest.fixture
def saved(job, tmp_path):
    """A session that saved a model and its optimizer, and the directory that has them."""
    model, optimizer = trained()
    session = job(dir=tmp_path / "run", save_storage_interval=1)
    items = {"model": model, "optimizer": optimizer, "progress": {"epoch": 4}}
    session.save(1, items).durable.result(60)
    return session, tmp_path / "run", model, optimizer


@pytest.mark.parametrize("from_path", [False, True])
def test_a_model_and_its_optimizer_come_back_under_new_names(saved, from_path):
    session, directory, model, optimizer = saved
    other = New()
    later = torch.optim.AdamW(other.parameters(), lr=0.5)
    items = {"net": other, "adam": later, "progress": {"epoch": 0}}
    path = directory if from_path else None
    session.restore(items, path=path, renamed={**RULES, "optimizer": "adam"})
    assert_moved(model, other)
    assert items["progress"] == {"epoch": 4}
    states = zip(optimizer.state.values(), later.state.values(), strict=True)
    for there, here in states:
        assert there.keys() == here.keys()
        assert all(torch.equal(there[key], here[key]) for key in there)
    assert later.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_what_was_saved_under_the_new_names_needs_no_rule_and_minds_none(saved):
    session, _, model, _ = saved
    other = New()
    session.restore({"net": other}, renamed=RULES)
    session.save(2, {"net": other}, wait=60).captured.result(30)  # Slots of this layout are made.
    again = New()
    assert session.restore({"net": again}, renamed=RULES).step == 2
    assert_moved(model, again)


def test_a_part_of_a_module_becomes_an_item(saved):
    session, directory, model, _ = saved
    encoder = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    session.restore({"encoder": encoder}, path=directory, renamed={"model.encoder": "encoder"})
    for one, other in zip(model.encoder.state_dict().values(), encoder.state_dict().values(),
                          strict=True):  # fmt: skip
        assert torch.equal(one, other)


def test_a_part_of_an_item_becomes_a_part_of_another(job):
    session = job()
    session.save(1, {"a": {"x": torch.ones(2), "y": 1}, "b": {"z": 2}}).captured.result(30)
    items = session.restore(renamed={"a.x": "b.w", "a.y": "c"}).items
    assert items.keys() == {"b", "c"}  # Nothing is left of the first one.
    assert items["b"]["w"].tolist() == [1.0, 1.0]
    assert items["b"]["z"] == 2
    assert items["c"] == 1


def test_names_are_exchanged_without_mixing_them_up(job):
    session = job()
    session.save(1, {"a": torch.ones(2), "b": torch.zeros(2)}).captured.result(30)
    items = {"a": torch.full((2,), 5.0), "b": torch.full((2,), 5.0)}
    session.restore(items, renamed={"a": "b", "b": "a"})
    assert items["a"].eq(0).all()
    assert items["b"].eq(1).all()


def test_only_whole_words_of_a_name_count(job):
    session = job()
    session.save(1, {"net": torch.ones(2), "network": torch.zeros(3)}).captured.result(30)
    found = session.restore(renamed={"net": "other"}).items
    assert found["other"].eq(1).all()
    assert found["network"].eq(0).all()


def test_arrays_come_back_under_new_names(job):
    values = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
    session = job()
    whole = libckpt.Array("old.w", values.copy(), global_shape=(4, 3), offset=(0, 0))
    session.save(1, {}, arrays=[whole]).captured.result(30)
    into = numpy.zeros((4, 3), numpy.float32)
    wanted = libckpt.Array("new.w", into, global_shape=(4, 3), offset=(0, 0))
    session.restore(arrays=[wanted], renamed={"old": "new"})
    assert (into == values).all()
    stale = libckpt.Array("old.w", into, global_shape=(4, 3), offset=(0, 0))
    with pytest.raises(libckpt.InvalidArgument, match='"old.w" has no name in the checkpoint'):
        session.restore(arrays=[stale], renamed={"old": "new"})


@pytest.mark.parametrize("from_path", [False, True])
def test_another_number_of_ranks_finds_arrays_under_new_names(job, tmp_path, from_path):
    values = numpy.arange(24, dtype=numpy.float32).reshape(8, 3)
    sessions = [job(dir=tmp_path / "run", save_storage_interval=1, rank=rank, world_size=2)
                for rank in (0, 1)]  # fmt: skip

    def save(rank, session):
        own = libckpt.Array("old.w", values[4 * rank : 4 * rank + 4].copy(), global_shape=(8, 3),
                            offset=(4 * rank, 0))  # fmt: skip
        session.save(1, {"done": {"step": 1}}, arrays=[own]).durable.result(60)

    at_once(sessions, save)
    for session in sessions:
        session.abandon()
    into = numpy.zeros((8, 3), numpy.float32)
    wanted = libckpt.Array("new.w", into, global_shape=(8, 3), offset=(0, 0))
    alone, done = job(dir=tmp_path / "run"), {"step": 0}
    path = tmp_path / "run" if from_path else None
    alone.restore({"now": done}, arrays=[wanted], path=path, renamed={"old": "new", "done": "now"})
    assert (into == values).all()
    assert done == {"step": 1}


REFUSED = [
    ({"a": 3}, "renamed: a dictionary from names"),
    ({"": "b"}, "renamed: a dictionary from names"),
    (["a"], "renamed: a dictionary from names"),
    ({"a": "c", "b": "c"}, "two names would be the same here"),
    ({"a": "b"}, 'two parts of the checkpoint are "b" here'),
    ({"a.x": "b.z"}, 'two parts of the checkpoint are "z" here'),
    ({"a.x": "n.x"}, 'would be a part of item "n", which was saved as a value that has no parts'),
]


@pytest.mark.parametrize(("renamed", "words"), REFUSED)
def test_rules_that_lead_nowhere_are_refused_with_the_reason(job, renamed, words):
    session = job()
    items = {"a": {"x": torch.ones(2)}, "b": {"z": 2}, "n": 7}
    session.save(1, items).captured.result(30)
    with pytest.raises(libckpt.InvalidArgument, match=words):
        session.restore(renamed=renamed)
    assert session.restore().step == 1


def test_each_name_leads_there_and_back():
    names = _names.Names({"a": "b", "b": "a", "a.x": "c"})
    for there in ("a", "a.y", "b.y", "a.x", "a.x.0", "d"):
        assert names.there(names.here(there)) == there
    with pytest.raises(libckpt.InvalidArgument, match='array "b.x" has no name'):
        names.there("b.x")
