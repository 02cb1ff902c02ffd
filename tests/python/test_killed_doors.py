"""Goal: a loop of accelerate, a fit of Lightning and a Trainer that are killed at random instants
end as if they had not been.

Method: the trainers of the other tests. All ranks are killed as soon as a random one has made a
random step, while captures and folders are under way. The last launch ends as stock ones that
nobody kills, to the last bit, and so does the loss of each step, however often it was made.
"""

import os
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import test_accelerate  # noqa: E402

SEED = int(os.environ.get("CKPT_PYTHON_SEED", "1"))
KILLS = [2, pytest.param(12, marks=pytest.mark.slow)]
WAITS = 60  # Seconds for a step to be committed: so each launch gets on, on any machine.
STEPS_EACH = (3, 6)  # At least and at most, before it is killed.


def steps_for(kills):
    """More than are made before the last kill, however late it comes."""
    return (kills + 4) * STEPS_EACH[1]


def killed(start, kills, ranks, first_of):
    """The logs of launches by start(steps), each killed after the one before.

    `first_of`: (log, rank) -> the step that the rank began at; None: it has not said so yet."""
    chance, logs, begun = random.Random(SEED), [], []
    for _ in range(kills):
        process = start()
        rank = chance.randrange(ranks)
        process.wait_until(lambda log=process.log, rank=rank: first_of(log.read_text(), rank))
        begun.append(int(first_of(process.log.read_text(), rank)[0]))
        process.wait_until_said(f"r{rank} made {begun[-1] + chance.randint(*STEPS_EACH)} ")
        process.kill()
        logs.append(process.log.read_text())
        if "r0 weights " in logs[-1]:  # It came to its end before it was killed.
            break
    assert begun == sorted(begun)
    return logs


def check_losses(logs, whole, made, ranks):
    """`made`: (log, rank) -> losses by step."""
    for rank in range(ranks):
        expected = made(whole, rank)
        for log in logs:
            found = made(log, rank)
            assert found == {step: expected[step] for step in found}


@pytest.mark.slow  # test_early_ends.py has it in the quick form.
@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize(
    "ranks, more",
    [(1, {}), (2, {}), (2, {"sharded": True})],
    ids=["one", "ddp", "fsdp2"],
)
def test_a_loop_of_accelerate(trainer, tmp_path, ranks, more, kills):
    options = {"ranks": ranks, "steps": steps_for(kills), "waits": WAITS} | more
    whole = test_accelerate.run(trainer, tmp_path / "stock", "stock", **options).finish()
    project = tmp_path / "project"
    logs = killed(lambda: test_accelerate.run(trainer, project, **options), kills, ranks,
                  lambda log, rank: test_accelerate.said(log, rank, "began"))  # fmt: skip
    last = test_accelerate.run(trainer, project, **options).finish()
    assert test_accelerate.began(last) > 0
    assert test_accelerate.results(last, ranks) == test_accelerate.results(whole, ranks)
    check_losses([*logs, last], whole, test_accelerate.made, ranks)


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_fit_of_lightning(trainer, tmp_path, ranks, kills):
    pytest.importorskip("lightning.pytorch")
    import test_lightning

    options = {"ranks": ranks, "steps": steps_for(kills), "waits": WAITS}
    whole = test_lightning.run(trainer, tmp_path / "stock", "stock", **options).finish()
    root = tmp_path / "root"
    logs = killed(lambda: test_lightning.run(trainer, root, **options), kills, ranks,
                  lambda log, rank: test_lightning.said(log, rank, "began"))  # fmt: skip
    last = test_lightning.run(trainer, root, **options).finish()
    assert int(test_lightning.said(last, 0, "began")[0]) > 0
    test_lightning.check_ends_alike(last, whole, ranks)
    check_losses([*logs, last], whole, test_lightning.made, ranks)


@pytest.mark.slow  # test_transformers.py kills at random and compares losses in the quick form.
@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_of_transformers(trainer, tmp_path, ranks, kills):
    """Its log of losses, which the last launch tells, has those of all launches before."""
    pytest.importorskip("transformers")
    import test_transformers

    options = {"max_steps": steps_for(kills), "resume": True}
    options |= {"ranks": 2} if ranks > 1 else {}
    whole = test_transformers.run(trainer, tmp_path / "stock", "stock",
                                  **options | {"resume": None}).finish()  # fmt: skip
    output, chance, first = tmp_path / "output", random.Random(SEED), []
    for count in range(kills):
        # It waits behind the last of the steps, so that it comes to no end, however slow this is.
        process = test_transformers.run(trainer, output, hold_after=STEPS_EACH[1], **options)
        first.append(process.wait_for_number("made "))
        made = f"made {first[-1] + chance.randint(*STEPS_EACH) - 1}\n"
        process.wait_until_said("held " if count % 2 else made)  # Held, it has got on.
        process.kill()
    last = test_transformers.run(trainer, output, **options).finish()
    assert test_transformers.results(last) == test_transformers.results(whole)
    assert first == sorted(first)
    assert "libckpt: resumes step" in last
