"""Goal: all that a training loop has comes back: into the same objects, bit for bit.

Method: small models are trained with the real optimizers and schedulers, saved in mid-course and
restored into objects that went on, or into new ones; both must then train alike.
"""

import collections
import copy
import enum
import math
import random
import time

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import libckpt  # noqa: E402

OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adamax"]


class Color(enum.Enum):
    RED = 1


class Model(torch.nn.Module):
    """With batch norm, tied weights, a frozen part and a buffer that is not kept."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Linear(8, 1)
        self.frozen.requires_grad_(False)
        self.register_buffer("unkept", torch.zeros(1), persistent=False)

    def forward(self, inputs):
        hidden = torch.nn.functional.dropout(self.norm(self.first(inputs)), 0.1, self.training)
        return self.frozen(self.second(hidden))


class Trainer:
    def __init__(self, seed, optimizer="AdamW"):
        self.model = Model(seed)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = getattr(torch.optim, optimizer)(parameters, lr=torch.tensor(0.01)) \
            if optimizer in ("Adam", "AdamW") \
            else getattr(torch.optim, optimizer)(parameters, lr=0.01)  # fmt: skip
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], gamma=0.5)
        self.progress = {"loss": math.nan, "epoch": 0}
        self.items = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "rng": libckpt.RNG(),
            "progress": self.progress,
        }

    def train(self):
        inputs = torch.rand(16, 8) * random.random() + float(numpy.random.rand())
        loss = self.model(inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.progress["loss"] = loss.item()
        return loss.item()


def save_and_commit(session, step, items):
    """The step that was captured: one is skipped while no Slot is free."""
    while not session.save(step, items):
        step += 1
    session.wait(step, "committed", 30)
    return step


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_restored_trainer_goes_on_as_the_first_one_did(job, optimizer):
    first = Trainer(1, optimizer)
    session = job().guard(first.optimizer)
    saved = 0
    for _ in range(3):
        first.train()
        saved = save_and_commit(session, saved + 1, first.items)
    expected = [first.train() for _ in range(3)]
    session.abandon()

    second = Trainer(2, optimizer)
    random.seed(5)
    restored = job().restore(second.items)
    assert restored.step == saved
    assert restored.source == "own_memory"
    assert [second.train() for _ in range(3)] == expected
    state = second.model.state_dict()
    assert all(torch.equal(part, state[name]) for name, part in first.model.state_dict().items())


def is_alike(one, other):
    if isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(other, dict):
        return list(one) == list(other) and all(is_alike(one[key], other[key]) for key in other)
    if isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return one == other


def test_a_guarded_save_has_the_state_of_the_call(job):
    trainer = Trainer(1)
    session = job().guard(trainer.optimizer)
    trainer.train()
    for step in range(1, 20):
        expected = copy.deepcopy(
            {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
        )
        ticket = session.save(step, {"model": trainer.model, "optimizer": trainer.optimizer})
        trainer.train()  # Statistics, moments, and the learning rate, which is a tensor.
        if ticket:
            ticket.captured.result(30)
            found = session.restore(step=step).items
            assert is_alike(found, expected), step
            rate = found["optimizer"]["param_groups"][0]["lr"]
            assert torch.is_tensor(rate)


def test_an_optimizer_is_restored_into_the_same_object(job):
    trainer = Trainer(1)
    trainer.train()
    session = job()
    session.save(1, trainer.items).captured.result(30)
    expected = [p.detach().clone() for p in trainer.model.parameters()]
    addresses = [p.data_ptr() for p in trainer.model.parameters()]
    trainer.train()
    session.restore(trainer.items)
    assert [p.data_ptr() for p in trainer.model.parameters()] == addresses
    assert all(map(torch.equal, trainer.model.parameters(), expected))
    assert trainer.scheduler.last_epoch == 1


def test_plain_data_comes_back_exactly(job):
    data = {
        "none": None, "bool": True, "int": -(2**80), "float": 0.1 + 0.2, "infinite": -math.inf,
        "text": 'é"\n\0', "bytes": b"\0\xff", "list": [1, [2.5, (3, "x")]], "tuple": (),
        5: "integer key", (1, 2): "tuple key", "counter": collections.Counter("aab"),
        "enum": Color.RED, "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
        "nested": {"tensor": [torch.arange(3), {"deeper": torch.ones(2, 2)}]},
    }  # fmt: skip
    session = job()
    session.save(1, {"data": data, "nan": math.nan}).captured.result(30)
    restored = session.restore().items
    assert math.isnan(restored["nan"])
    found = restored["data"]
    nested, expected = found.pop("nested"), data.pop("nested")
    assert found == data
    assert [type(value) for value in found.values()] == [type(value) for value in data.values()]
    assert torch.equal(nested["tensor"][0], expected["tensor"][0])
    assert torch.equal(nested["tensor"][1]["deeper"], expected["tensor"][1]["deeper"])


def test_a_sampler_and_a_scaler_keep_their_place(job):
    class Sampler:
        position = 0

        def state_dict(self):
            return {"position": self.position}

        def load_state_dict(self, state):
            self.position = state["position"]

    sampler, scaler = Sampler(), torch.amp.GradScaler("cpu", init_scale=8.0)
    sampler.position = 41
    session = job()
    session.save(1, {"sampler": sampler, "scaler": scaler}).captured.result(30)
    sampler.position = 0
    fresh = torch.amp.GradScaler("cpu", init_scale=2.0)
    session.restore({"sampler": sampler, "scaler": fresh})
    assert sampler.position == 41
    assert fresh.get_scale() == 8.0


class Cached(torch.nn.Linear):
    """Has something that is derived of what is loaded."""

    def __init__(self, told_by):
        super().__init__(3, 3)
        self.doubled = None
        if told_by == "hook":
            self.register_load_state_dict_post_hook(lambda module, _: module.derive())
        self._is_overridden = told_by == "override"

    def derive(self):
        self.doubled = 2 * self.weight.detach()

    def _load_from_state_dict(self, *arguments):
        super()._load_from_state_dict(*arguments)
        if self._is_overridden:
            self.derive()


@pytest.mark.parametrize("told_by", ["hook", "override"])
def test_a_module_that_has_a_say_in_loading_is_told(job, told_by):
    saved, model = Cached(told_by), Cached(told_by)
    session = job()
    session.save(1, {"model": torch.nn.Sequential(saved)}).captured.result(30)
    session.restore({"model": torch.nn.Sequential(model)})
    assert torch.equal(model.weight, saved.weight)
    assert torch.equal(model.doubled, 2 * saved.weight)


def test_a_module_is_not_filled_from_a_tensor(job):
    session, model = job(), torch.nn.Linear(1, 1)
    session.save(1, {"a": torch.ones(3)}).captured.result(30)
    with pytest.raises(libckpt.InvalidArgument, match='"a" is a module here, and was saved as a '):
        session.restore({"a": torch.nn.Identity()})
    before = model.weight.clone()
    session.restore({"a": model}, strict=False)
    assert torch.equal(model.weight, before)


def test_a_save_that_was_skipped_is_not_waited_for(job):
    ticket = libckpt.Ticket(job(), 1, "skipped_no_slot", 0.0)
    with pytest.raises(libckpt.NotFound, match="all Slots are in use"):
        ticket.captured.result(30)
    assert not ticket.captured.done()


def test_items_may_come_go_and_grow(job):
    session = job()
    session.save(1, {"a": torch.ones(3)}).captured.result(30)
    grown = {"a": torch.ones(300_000), "b": [torch.zeros(2)]}
    deadline = time.monotonic() + 30
    step, ticket = 2, session.save(2, grown)
    while not ticket and time.monotonic() < deadline:  # A save never waits for larger Slots.
        session.prepare(grown)
        step += 1
        ticket = session.save(step, grown)
    ticket.captured.result(30)
    restored = session.restore().items
    assert restored["a"].shape == (300_000,)
    assert list(restored) == ["a", "b"]


def test_strict_names_what_differs_and_lenient_takes_what_fits(job):
    session = job()
    session.save(1, {"net": torch.nn.Linear(3, 4)}).captured.result(30)
    other = torch.nn.Sequential(torch.nn.Linear(3, 4))
    with pytest.raises(libckpt.InvalidArgument, match=r"net\.0\.weight.*strict=False"):
        session.restore({"net": other})
    with pytest.raises(libckpt.InvalidArgument, match=r'"net\.weight" is F32 \[4, 2\] here'):
        session.restore({"net": torch.nn.Linear(2, 4)})
    with pytest.raises(libckpt.InvalidArgument, match='"more" was not saved'):
        session.restore({"more": {}})
    narrow = torch.nn.Linear(3, 4, bias=False)
    before = narrow.weight.detach().clone()
    with pytest.raises(libckpt.InvalidArgument, match='module "net" has no bias') as refused:
        session.restore({"net": narrow})
    assert "overwrote" not in str(refused.value)
    assert torch.equal(narrow.weight, before)
    wide = torch.nn.Linear(2, 4)
    before = wide.weight.detach().clone()
    session.restore({"net": wide, "more": {}}, strict=False)
    assert torch.equal(wide.weight, before)
