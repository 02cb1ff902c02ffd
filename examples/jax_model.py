"""The model of the trainers of JAX beside this file: two matrices that learn to reproduce noise."""

import hashlib

import jax
import jax.numpy as jnp
import numpy
from jax.sharding import NamedSharding, PartitionSpec

WIDTH, INPUTS = 2048, 128
BATCH = 256
RATE = 0.05


def make_weights():
    """The weights, and the key of the noise."""
    first, second, noise = jax.random.split(jax.random.key(1), 3)
    weights = {
        "in": jax.random.normal(first, (INPUTS, WIDTH)) / 11,
        "out": jax.random.normal(second, (WIDTH, INPUTS)) / 45,
    }
    return weights, noise


def loss_of(weights, batch):
    return jnp.mean((jnp.tanh(batch @ weights["in"]) @ weights["out"] - batch) ** 2)


def learn(weights, momentum, key):
    """One step: new weights, momentum and key, and the loss."""
    key, used = jax.random.split(key)
    batch = jax.random.normal(used, (BATCH, INPUTS))
    loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda w, m: w - RATE * m, weights, momentum), momentum, key, loss


def shardings(devices, state):
    """The columns of one matrix and the rows of the other are divided; all else is everywhere."""
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()[:devices]), ("model",))
    specs = {"in": PartitionSpec(None, "model"), "out": PartitionSpec("model", None)}

    def one(path, _):
        return NamedSharding(mesh, specs.get(getattr(path[-1], "key", None), PartitionSpec()))

    return jax.tree_util.tree_map_with_path(one, state)


def tell_end(weights):
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(weights):
        digest.update(numpy.asarray(leaf).tobytes())
    print(f"final weights {digest.hexdigest()[:16]}", flush=True)
