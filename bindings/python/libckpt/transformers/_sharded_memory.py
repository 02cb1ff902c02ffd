"""Sharded memory: the steps of a Trainer whose model DeepSpeed or FSDP2 divides among the ranks.

Each rank captures its part. A restore fills engine or model where they are, so it comes once the
Trainer has them; another number of ranks gets the parts that it has then.
"""

import json
import logging

from libckpt import errors
from libckpt.rng import RNG
from libckpt.transformers._memory import TrainerMemory, give_totals, state_json, totals_of

logger = logging.getLogger("libckpt")


class ShardedMemory(TrainerMemory):
    def __init__(self, trainer, job, options):
        super().__init__(trainer, job, False, options)
        self._parts = None  # The model's and the optimizer's, once the Trainer has them.
        self._totals = None  # As they were restored, like the next two.
        self.state = self.rng = None

    def prepared(self):
        """The Trainer has its model and its optimizer."""
        if self.session is None:
            return
        try:
            self._parts = _parts_of(self._trainer)
        except (errors.CheckpointError, AttributeError) as error:  # A version with other fields.
            logger.warning("libckpt: the Trainer's steps are not captured in memory: %s", error)
            self.session.abandon()
            self.session = None

    def begin(self):
        if not self._has_opened:  # The callback was added when that had been done.
            self._open()
        if self._parts is None:
            self.prepared()
        super().begin()

    def decide(self, what, value):
        """As rank 0 says it."""
        if self.session is None:
            return value
        return self.session.ranks.decide(what, value, lambda said: said[0])

    def items(self):
        trainer = self._trainer
        state = {"state": state_json(trainer), "totals": totals_of(trainer)}
        return {**self._parts.items(), **self._others(), "trainer": state}

    def arrays(self):
        return self._parts.arrays()

    def _others(self):
        """The Trainer's state beside its model and its optimizer, by name."""
        trainer = self._trainer
        found = {"scheduler": trainer.lr_scheduler,
                 "scaler": getattr(trainer.accelerator, "scaler", None)}  # fmt: skip
        if trainer.is_deepspeed_enabled:
            from accelerate.utils import DeepSpeedSchedulerWrapper

            if isinstance(trainer.lr_scheduler, DeepSpeedSchedulerWrapper):
                del found["scheduler"]  # It is the engine's.
        return {name: part for name, part in found.items() if part is not None}

    def _guard(self):
        """Nothing: the copies of such tensors are made before a save returns."""

    def _restored(self, source):
        saved = {}
        into = {**self._others(), "trainer": saved}
        restored = self._parts.restore(self.session, into, source)
        if json.loads(saved["state"]).get("global_step") != restored.step:
            raise errors.InvalidArgument(
                f"step {restored.step} from {restored.source_name}: its trainer state is of "
                "another step"
            )
        self.state, self._totals = saved["state"], saved["totals"]
        self.rng = RNG().state_dict()  # A new rank has the one that it was seeded with.
        return restored

    def give_totals(self, trainer):
        give_totals(trainer, self._totals)


def _parts_of(trainer):
    return (_EngineParts if trainer.is_deepspeed_enabled else _FsdpParts)(trainer)


class _EngineParts:
    """The parts of an engine of DeepSpeed."""

    def __init__(self, trainer):
        from libckpt import deepspeed
        from libckpt.deepspeed._layout import Layout
        from libckpt.deepspeed._state import EngineState

        engine = trainer.model_wrapped
        problem = deepspeed.problem_of(engine)
        if problem is not None:
            raise errors.Unsupported(f"of DeepSpeed's engine, {problem}")
        self._state = EngineState(engine, Layout(engine))

    def items(self):
        return self._state.items()

    def arrays(self):
        return self._state.arrays()

    def restore(self, session, into, source):
        found = self._state.newest(session, source)
        self._state.give(session, found, into, source)
        return found


class _FsdpParts:
    """The parts of a module under fully_shard, and of its optimizer."""

    def __init__(self, trainer):
        self._model = trainer.accelerator.unwrap_model(trainer.model)
        self._optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)

    def items(self):
        return {"model": self._model, "optimizer": self._optimizer, "rng": RNG()}

    def arrays(self):
        return ()

    def restore(self, session, into, source):
        return session.restore({**self.items(), **into}, source=source)
