"""The training of jax_steps.py under libckpt.levanter.Checkpointer.

levanter_steps.py PROCESS PROCESSES PORT MESH BASE STEPS: folders at each fourth step, for good, and
memory at each step.
"""

import functools
import os
import signal
import sys

import jax
import jax_steps
import numpy
import optax
from jax_steps import digest, say

import libckpt.levanter
from libckpt.levanter import CheckpointInterval


def train(mesh, base, steps):
    optimizer = optax.adam(0.01)
    make = functools.partial(jax_steps.make_state, optimizer)
    wanted = jax_steps.shardings(mesh, jax.eval_shape(make))
    step_of = jax_steps.make_step(optimizer, wanted)
    checkpointer = libckpt.levanter.Checkpointer(base, None, [CheckpointInterval(every=4)])
    state = checkpointer.load_or(jax.jit(make, out_shardings=wanted)())
    start = int(numpy.asarray(state["step"].addressable_data(0)))
    say("began at", start, digest(state))
    hold_at = int(os.environ.get("HOLD_AT", 0))
    for step in range(start + 1, int(steps) + 1):
        state, loss = step_of(state)
        checkpointer.on_step(tree=state, step=step)
        say("step", step, float(loss).hex(), digest(state))
        jax_steps.wait(step, checkpointer._memory.session)
        if step == hold_at:
            checkpointer._memory.session.wait(step - 1, "committed")
            checkpointer.wait_until_finished()
            say("holds", step)
            signal.pause()
    checkpointer.wait_until_finished()
    checkpointer.close()


if __name__ == "__main__":
    jax_steps.main(*sys.argv[1:], train=train)
