"""A training by Levanter's own Trainer, with libckpt.levanter.Checkpointer in its configuration, as
the guide has it.

levanter_own.py BASE STEPS: folders at each fourth step, for good, and memory at each step.
"""

import dataclasses
import datetime
import os
import sys

import equinox
import haliax
import jax
import levanter
import numpy
import optax
from levanter.data import ListAsyncDataset
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

import libckpt.levanter
from libckpt.levanter import CheckpointInterval

FEATURE = haliax.Axis("feature", 64)
HIDDEN = haliax.Axis("hidden", 32)


class Model(equinox.Module):
    first: haliax.nn.Linear
    second: haliax.nn.Linear

    @staticmethod
    def init(key):
        keys = jax.random.split(key)
        return Model(haliax.nn.Linear.init(FEATURE, HIDDEN, key=keys[0]),
                     haliax.nn.Linear.init(HIDDEN, (), key=keys[1]))  # fmt: skip


def loss_of(model, batch, key=None):
    # The noise shows whether the key of the training comes back, too.
    noise = haliax.random.normal(key, batch.axes) / 10
    made = model.second(haliax.tanh(model.first(batch + noise)))
    return haliax.mean((made - haliax.sum(batch, FEATURE)) ** 2).scalar()


def main(base, steps):
    examples = numpy.random.default_rng(1).standard_normal((4096, FEATURE.size)).astype("f4")
    config = TrainerConfig(
        id="own", seed=3, num_train_steps=int(steps), train_batch_size=8, tracker=NoopConfig(),
        log_jaxprs=False, log_xla_hlo=False, require_accelerator=False, load_checkpoint=False,
    )  # fmt: skip
    levanter.initialize(config)
    checkpointer = libckpt.levanter.Checkpointer(
        base, datetime.timedelta(hours=1), [CheckpointInterval(every=4)]
    )

    class Ours(levanter.checkpoint.CheckpointerConfig):
        def create(self, run_id):
            return checkpointer

    config = dataclasses.replace(config, checkpointer=Ours())

    def say(info):
        # One write, so that a kill leaves no half of a line.
        os.write(1, f"step {info.step} {float(info.loss).hex()}\n".encode())

    with Trainer(config, optax.adam(0.01), loss_of) as trainer:
        model_key, training_key = jax.random.split(jax.random.PRNGKey(config.seed))
        trainer.add_hook(say, every=1)
        state = trainer.initial_state(training_key, model_init=lambda: Model.init(model_key))
        state = equinox.combine(checkpointer.load_or(state.saveable_state), state)
        print("began at", int(state.step), flush=True)
        dataset = ListAsyncDataset([haliax.named(row, FEATURE) for row in examples])
        loader = trainer.data_loader(dataset)
        trainer.train(state, loader.iter_from_step(int(state.step)))
    checkpointer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
