"""A loop of JAX whose state outlives it, on any mesh.

    python examples/jax_trainer.py --dir DIRECTORY            each step in memory, some on storage
    python examples/jax_trainer.py --dir DIRECTORY --mesh 2   goes on with two devices
    python examples/jax_trainer.py --demo                     kills and resumes itself

Start it, kill it, start it again: it goes on after the newest step. Without accelerators it has
four devices on the processor. Lines with "<-" are all that libckpt adds to the loop.
"""

import argparse
import functools
import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax_model import learn, make_weights, shardings, tell_end  # noqa: E402

import libckpt.jax  # noqa: E402


def make_state():
    params, noise = make_weights()
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params), "key": noise,
            "loss": jnp.zeros(())}  # fmt: skip


def train(directory, steps, devices):
    wanted = shardings(devices, jax.eval_shape(make_state))

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=wanted)
    def train_step(state):
        params, momentum, key, loss = learn(state["params"], state["momentum"], state["key"])
        return {"params": params, "momentum": momentum, "key": key, "loss": loss}

    checkpointer = libckpt.jax.Checkpointer(  # <-
        "jax-trainer", directory, save_storage_interval=20, keep=2
    )
    state = jax.jit(make_state, out_shardings=wanted)()
    start, state = checkpointer.restore_or(state)  # <-
    print("resumes after step", start, flush=True)
    for step in range(start + 1, steps + 1):
        state = train_step(state)
        if step < steps:
            checkpointer.save_checkpoint_if_needed(step, state)  # <-
        else:  # No later step replaces it.
            checkpointer.save(step, state, wait=60)  # <-
        print(f"step {step} loss {float(state['loss']):.6f}", flush=True)
    checkpointer.close()  # <-
    tell_end(state["params"])


def demo(script, steps):
    from demo import Demo, compare, title

    with Demo(script) as runs:
        title("nobody is killed")
        expected = runs.whole("--dir", runs.scratch / "whole", "--steps", steps)

        title("killed twice; the first time its memory is left, the second time only storage")
        session = ("--dir", runs.scratch / "session", "--steps", steps)
        runs.lose_memory()
        runs.killed(*session)
        runs.killed(*session, after=(70, 110))
        runs.lose_memory()
        compare(expected, runs.whole(*session))

        title("killed on four devices, and it goes on with two, then with one")
        other = ("--dir", runs.scratch / "other", "--steps", steps)
        runs.lose_memory()
        runs.killed(*other)
        runs.killed(*other, "--mesh", 2, after=(70, 110))
        print("--- sums in another order:", runs.whole(*other, "--mesh", 1), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dir", default="jax-trainer", help="where checkpoints are published")
    parser.add_argument("--steps", type=int, default=200)
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
