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
import os
import pathlib
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402
from jax_model import learn, make_weights, shardings, tell_end  # noqa: E402

from libckpt.levanter import Checkpointer, CheckpointInterval, initialize_from  # noqa: E402


def make_state():
    model, noise = make_weights()
    return {"model": model, "momentum": jax.tree.map(jnp.zeros_like, model), "training_key": noise,
            "step": jnp.zeros((), jnp.int32)}  # fmt: skip


def train(directory, steps, devices):
    wanted = shardings(devices, jax.eval_shape(make_state))

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(wanted, None))
    def train_step(state):
        old = state["model"], state["momentum"], state["training_key"]
        model, momentum, key, loss = learn(*old)
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
    tell_end(state["model"])


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
