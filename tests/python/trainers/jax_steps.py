"""A training of JAX, in one process or in several, to be killed and started again on any mesh.

jax_steps.py PROCESS PROCESSES PORT MESH JOB STEPS [DIR]: MESH is the number of devices along each
of its axes, as 2x2. The environment has XLA_FLAGS, and may have HOLD_AT and WAITS.
"""

import contextlib
import functools
import hashlib
import os
import signal
import sys

import faults
import jax
import jax.numpy as jnp
import numpy
import optax
from jax.sharding import NamedSharding, PartitionSpec

import libckpt
import libckpt.jax

WIDTH = 64


def say(*words):
    """One write, so that lines of several processes stay whole."""
    faults.check()
    os.write(1, (" ".join(map(str, (f"p{jax.process_index()}", *words))) + "\n").encode())


def make_mesh(text):
    shape = tuple(map(int, text.split("x")))
    devices = numpy.array(jax.devices()[: int(numpy.prod(shape))]).reshape(shape)
    return jax.sharding.Mesh(devices, ("rows", "columns")[: len(shape)])


def shardings(mesh, tree):
    """Matrices have both axes of the mesh, where it has two; all else is on every device."""

    def one(leaf):
        is_matrix = getattr(leaf, "ndim", 0) == 2
        axes = (*mesh.axis_names, None)[:2] if is_matrix else ()
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map(one, tree)


def make_state(optimizer):
    key = jax.random.key(1)
    first, second, noise = jax.random.split(key, 3)
    params = {
        "first": jax.random.normal(first, (WIDTH, WIDTH)) / 8,
        "second": (jax.random.normal(second, (WIDTH, 32)) / 8).astype(jnp.bfloat16),
        "bias": jnp.zeros(WIDTH),
    }
    return {"params": params, "optimizer": optimizer.init(params), "key": noise,
            "step": jnp.zeros((), jnp.int32)}  # fmt: skip


def loss_of(params, batch):
    hidden = jnp.tanh(batch @ params["first"] + params["bias"])
    return jnp.mean((hidden @ params["second"].astype(jnp.float32)) ** 2)


@functools.cache
def gatherer(mesh):
    return jax.jit(lambda value: value, out_shardings=NamedSharding(mesh, PartitionSpec()))


def whole(data):
    return data if data.is_fully_addressable else gatherer(data.sharding.mesh)(data)


def digest(state):
    """Over each array as a whole, whichever device has which part. All processes call it."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        data = jax.random.key_data(leaf) if leaf.dtype == jax.random.key(0).dtype else leaf
        total.update(numpy.asarray(whole(data)).tobytes())
    return total.hexdigest()[:16]


def make_step(optimizer, wanted):
    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(wanted, None))
    def step_of(state):
        key, used = jax.random.split(state["key"])
        batch = jax.random.normal(used, (8, WIDTH))
        loss, gradients = jax.value_and_grad(loss_of)(state["params"], batch)
        updates, moments = optimizer.update(gradients, state["optimizer"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": moments, "key": key,
                "step": state["step"] + 1}, loss  # fmt: skip

    return step_of


def wait(step, session):
    """Until the step is committed, where that is asked for."""
    if "WAITS" in os.environ:
        with contextlib.suppress(libckpt.CheckpointError):  # It was skipped.
            session.wait(step, "committed", float(os.environ["WAITS"]))


def train(mesh, job, steps, directory=None):
    optimizer = optax.adam(0.01)
    state = jax.eval_shape(functools.partial(make_state, optimizer))
    wanted = shardings(mesh, state)
    make = jax.jit(functools.partial(make_state, optimizer), out_shardings=wanted)

    step_of = make_step(optimizer, wanted)
    checkpointer = libckpt.jax.Checkpointer(
        job, directory, save_storage_interval=4 if directory else None
    )
    like = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state, wanted,
    )  # fmt: skip
    start, hold_at = 0, int(os.environ.get("HOLD_AT", 0))
    try:
        restored = checkpointer.restore(like)
        start, state = restored.step, restored.tree
        say("source", restored.source, restored.world_size)
        assert jax.tree.map(lambda leaf: leaf.sharding, state) == wanted
    except libckpt.NotFound:
        state = make()
    say("began at", start, digest(state))
    for step in range(start + 1, int(steps) + 1):
        state, loss = step_of(state)
        if step == hold_at:
            ticket = checkpointer.save(step, state, wait=60)
        else:
            ticket = checkpointer.save_checkpoint_if_needed(step, state)
        if not ticket:
            say("not saved", step, ticket.outcome, checkpointer.session.counts()["last_error"])
        say("step", step, float(loss).hex(), digest(state))
        wait(step, checkpointer.session)
        if step == hold_at:
            ticket.committed.result(60)
            say("holds", step)
            signal.pause()
    say("ended", digest(state))
    checkpointer.close() if directory else checkpointer.session.abandon()


def main(process, processes, port, mesh, *arguments, train=train):
    faults.obey()
    if int(processes) > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}", int(processes), int(process),
            shutdown_timeout_seconds=int(os.environ.get("SHUTDOWN_TIMEOUT", 300)),
        )  # fmt: skip
    train(make_mesh(mesh), *arguments)
    if int(processes) > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
