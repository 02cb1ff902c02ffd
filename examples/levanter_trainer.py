"""A loop with Levanter's Checkpointer: its policies and folders, and every step in memory besides.

    python examples/levanter_trainer.py --dir DIRECTORY            goes on where it was
    python examples/levanter_trainer.py --dir DIRECTORY --mesh 2   goes on with two devices
    python examples/levanter_trainer.py --demo                     kills and resumes itself

Every 50th step is a folder for good, and every two seconds one comes that the next one replaces.
Levanter itself is not needed. Lines with "<-" are all that checkpoints want of the loop.
"""

import argparse
import datetime
import functools
import hashlib
import os
import pathlib
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from libckpt.levanter import Checkpointer, CheckpointInterval, initialize_from  # noqa: E402

WIDTH = 1024
RATE = 0.05


def make_state():
    first, second, noise = jax.random.split(jax.random.key(1), 3)
    model = {
        "in": jax.random.normal(first, (64, WIDTH)) / 8,
        "out": jax.random.normal(second, (WIDTH, 64)) / 32,
    }
    return {"model": model, "momentum": jax.tree.map(jnp.zeros_like, model), "training_key": noise,
            "step": jnp.zeros((), jnp.int32)}  # fmt: skip


def loss_of(model, batch):
    return jnp.mean((jnp.tanh(batch @ model["in"]) @ model["out"] - batch) ** 2)


def shardings(mesh, state):
    """The columns of one matrix and the rows of the other are divided; all else is everywhere."""
    specs = {"in": PartitionSpec(None, "data"), "out": PartitionSpec("data", None)}

    def one(path, _):
        return NamedSharding(mesh, specs.get(getattr(path[-1], "key", None), PartitionSpec()))

    return jax.tree_util.tree_map_with_path(one, state)


def train(directory, steps, devices):
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()[:devices]), ("data",))
    wanted = shardings(mesh, jax.eval_shape(make_state))

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(wanted, None))
    def train_step(state):
        key, used = jax.random.split(state["training_key"])
        batch = jax.random.normal(used, (128, 64))
        loss, gradients = jax.value_and_grad(loss_of)(state["model"], batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
        model = jax.tree.map(lambda p, m: p - RATE * m, state["model"], momentum)
        new = {"model": model, "momentum": momentum, "training_key": key, "step": state["step"] + 1}
        return new, loss

    checkpointer = Checkpointer(  # <-
        directory, datetime.timedelta(seconds=2), [CheckpointInterval(every=50)]
    )
    state = jax.jit(make_state, out_shardings=wanted)()
    state = checkpointer.load_or(state)  # <-
    start = int(state["step"])
    print("resumes after step", start, flush=True)
    for step in range(start + 1, steps + 1):
        state, loss = train_step(state)
        checkpointer.on_step(tree=state, step=step, metrics={"loss": loss})  # <-
        print(f"step {step} loss {float(loss):.6f}", flush=True)
    checkpointer.wait_until_finished()  # <-
    checkpointer.close()  # <-
    found = initialize_from(state["model"], directory)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(state["model"]))
    is_same = all(numpy.array_equal(*pair) for pair in pairs)
    print(f"final folder: its weights are those of the last step: {is_same}", flush=True)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state["model"]):
        digest.update(numpy.asarray(leaf).tobytes())
    print(f"final weights {digest.hexdigest()[:16]}", flush=True)


def demo(script, steps):
    from demo import Demo, compare, title

    with Demo(script) as runs:
        title("nobody is killed")
        expected = runs.whole("--dir", runs.scratch / "whole", "--steps", steps)

        title("killed twice; the first time its memory is left, the second time only folders")
        own = ("--dir", runs.scratch / "own", "--steps", steps)
        runs.killed(*own)
        runs.killed(*own, after=(70, 110))
        runs.lose_memory()
        compare(expected, runs.whole(*own))
        folders = [path.parent.name for path in (runs.scratch / "own").glob("step-*/metadata.json")]
        print("--- folders:", *sorted(folders, key=lambda name: int(name[5:])), flush=True)

        title("killed on four devices, and it goes on with two")
        other = ("--dir", runs.scratch / "other", "--steps", steps)
        runs.killed(*other)
        print("--- sums in another order:", runs.whole(*other, "--mesh", 2), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dir", default="levanter-trainer", type=pathlib.Path, help="for folders")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--mesh", type=int, default=4, help="how many devices")
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    if arguments.mesh > len(jax.devices()):
        sys.exit(f"--mesh {arguments.mesh}: there are {len(jax.devices())} devices")
    if arguments.demo:
        demo(__file__, arguments.steps)
    else:
        train(arguments.dir, arguments.steps, arguments.mesh)


if __name__ == "__main__":
    main()
