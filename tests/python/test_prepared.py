"""Goal: the first save finds its memory: it was made when training began, for the state that the
optimizer will have, too.

Method: what the daemon has is looked at before the first step, through Session.status(), by each
form of the two-line Session and by a Trainer; after some steps it is the same. Ranks that share
are in test_ranks.py.
"""

import importlib.util
import pathlib
import time

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

TRAINERS = pathlib.Path(__file__).parent / "trainers"
WIDTH = 256
SECONDS_MAX = 60
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p),
    "adam, amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "rmsprop, all of it": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
}


def own_slots(session):
    """The sizes of this rank's Slots, as the daemon tells them."""
    told = session.status()["daemon"]
    return {slot["bytes"] for slot in told["slots"] if slot["own"]}


def slots_once_made(session):
    """A restore that finds nothing leaves them to the background."""
    ends = time.monotonic() + SECONDS_MAX
    while not (slots := own_slots(session)):
        assert time.monotonic() < ends, session.status()
        time.sleep(0.002)
    return slots


def state_bytes(*states):
    return sum(
        sum(state_bytes(part) for part in state.values()) if isinstance(state, dict)
        else state.nbytes if isinstance(state, torch.Tensor) else 0
        for state in states
    )  # fmt: skip


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.rand(2, WIDTH)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("begin", ["restore_or", "prepare"])
def test_the_slots_of_a_session_have_room_for_what_the_optimizer_will_have(job, kind, begin):
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = OPTIMIZERS[kind](model.parameters())
    session = job().guard(optimizer)
    items = {"model": model, "optimizer": optimizer, "rng": libckpt.RNG()}
    getattr(session, begin)(items)
    before = slots_once_made(session)
    train(model, optimizer)
    assert min(before) >= state_bytes(model.state_dict(), optimizer.state_dict()["state"])
    for step in (1, 2, 3):
        assert session.save(step, items).outcome == "started"
        session.wait(step, "committed")
        train(model, optimizer)
    assert own_slots(session) == before


def test_a_trainer_of_transformers_has_its_slots_before_its_first_step(
    runtime, tmp_path, monkeypatch
):
    transformers = pytest.importorskip("transformers")
    import libckpt.transformers

    monkeypatch.syspath_prepend(TRAINERS)
    found = importlib.util.spec_from_file_location("hf", TRAINERS / "hf.py")
    hf = importlib.util.module_from_spec(found)
    found.loader.exec_module(hf)
    trainer = libckpt.transformers.TrainerWrapper(
        hf.make_trainer(str(tmp_path / "output"), "stock", max_steps=3, save_strategy="no")
    )
    (ours,) = [c for c in trainer.callback_handler.callbacks
               if isinstance(c, libckpt.transformers.Callback)]  # fmt: skip
    seen = []

    class Look(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            session = ours._memory.session
            seen.append((state.global_step, session.counts()["saves_started"], own_slots(session)))

    trainer.add_callback(Look())
    trainer.train()
    session = ours._memory.session
    assert seen[0][:2] == (0, 0)
    states = trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]
    assert min(seen[0][2]) >= state_bytes(*states)
    assert seen[-1][1] > 0
    assert all(slots == seen[0][2] for _, _, slots in seen)
    assert session.counts()["skipped_unavailable"] == 0
    session.abandon()
