"""Resumed: a step from memory on its way into a Trainer."""

import pathlib

from libckpt.adapters.torch import _optimizers, _owners
from libckpt.core._fill import load
from libckpt.rng import RNG
from libckpt.transformers._memory import give_totals


class Resumed:
    """The step, which the Trainer asks for part by part."""

    def __init__(self, restored, folder):
        self._values = restored.items
        self.step = restored.step
        self.source_name = restored.source_name
        self.folder = str(folder)

    def write_state(self):
        """Writes the state that the Trainer wants to read before it asks for anything."""
        folder = pathlib.Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trainer_state.json").write_text(self._values["state"])

    def give_model(self, trainer, model=None):
        model = trainer.accelerator.unwrap_model(trainer.model if model is None else model)
        load({"model": model}, {"model": self._values.pop("model")}, strict=True)

    def give_optimizer(self, trainer):
        names = _optimizers.names_of({"model": trainer.accelerator.unwrap_model(trainer.model)})
        state = {"optimizer": self._values.pop("optimizer")}
        items = {"optimizer": trainer.optimizer}
        owners = [_owners.Owners(items, for_capture=False, names=names)]
        load(items, state, strict=True, owners=owners)
        trainer.lr_scheduler.load_state_dict(self._values.pop("scheduler"))

    def give_scaler(self, trainer):
        if "scaler" in self._values and getattr(trainer.accelerator, "scaler", None) is not None:
            trainer.accelerator.scaler.load_state_dict(self._values.pop("scaler"))

    def give_rng(self, _):
        RNG().load_state_dict(self._values["rng"])

    def give_totals(self, trainer):
        give_totals(trainer, self._values["totals"])
