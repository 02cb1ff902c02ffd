"""Goal: a scheduler that is filled with another class's state is logged, as an optimizer is.

Method: the state of one scheduler is saved, and restored into another and into its like.
"""

import pytest

torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_scheduler_of_another_class_is_logged(job, caplog):
    model = torch.nn.Linear(3, 3)
    session = job()
    cosine = lr_scheduler.CosineAnnealingLR(optimizer_of(model), 10)
    assert session.save(1, {"model": model, "scheduler": cosine}, wait=20)
    same = lr_scheduler.CosineAnnealingLR(optimizer_of(model), 20)
    session.restore({"model": model, "scheduler": same})
    assert "another class" not in caplog.text
    other = lr_scheduler.OneCycleLR(optimizer_of(model), 0.1, 20)
    session.restore({"model": model, "scheduler": other})
    assert '"scheduler" is a OneCycleLR' in caplog.text
    assert "T_max" in caplog.text
