"""jax: what a save of a sharded tree holds a loop, against Orbax's asynchronous CheckpointManager.

Both sides get the same arrays and keep references to them. Ours goes to memory, with checksums, and
Orbax's to a folder; what goes on behind a save is waited for, and not counted.
"""

import itertools
import os
import shutil
import sys
import tempfile

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import libckpt.jax
from harness import Bar, Harness, seconds_of
from libckpt import _programs

ARRAY_BYTES = 16 << 20
WAIT = 300.0


class Side:
    def __init__(self, state):
        self._state, self._numbers = state, itertools.count(1)
        self._change = jax.jit(lambda tree: jax.tree.map(lambda array: array + 1, tree))

    def save(self):
        number = next(self._numbers)
        self._state = jax.block_until_ready(self._change(self._state))
        held = seconds_of(lambda: self.hold(number, self._state))
        self.settle()
        return held


class Ours(Side):
    def __init__(self, state):
        super().__init__(state)
        self.checkpointer = libckpt.jax.Checkpointer("bench-jax", raise_on_error=True)
        self.checkpointer.prepare(state)

    def hold(self, number, state):
        self._ticket = self.checkpointer.save(number, state)

    def settle(self):
        self._ticket.committed.result(WAIT)


class Orbax(Side):
    def __init__(self, state, folder):
        super().__init__(state)
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=True)
        self.manager = ocp.CheckpointManager(folder, options=options)

    def hold(self, number, state):
        self.manager.save(number, args=ocp.args.StandardSave(state))

    def settle(self):
        self.manager.wait_until_finished()


def main():
    harness = Harness("jax", __doc__)
    scratch = tempfile.mkdtemp(prefix="jax-", dir=harness.directory)
    os.environ["LIBCKPT_RUNTIME_DIR"] = f"{scratch}/runtime"
    try:
        rows = NamedSharding(Mesh(jax.devices(), ("a",)), PartitionSpec("a"))
        count = max(1, harness.bytes // ARRAY_BYTES)
        state = {f"w{index}": jax.device_put(jnp.full(ARRAY_BYTES // 4, index, jnp.float32), rows)
                 for index in range(count)}  # fmt: skip
        harness.add_condition(f"jax {jax.__version__}, orbax {ocp.__version__}, 4 devices")
        ours, orbax = Ours(state), Orbax(state, f"{scratch}/orbax")
        harness.compare(Bar("B30", "held: Orbax's CheckpointManager.save (async) / ours", 1, 0.5),
                        ours.save, orbax.save)  # fmt: skip
        ours.checkpointer.close()
        orbax.manager.close()
        _programs.run("ckpt", "stop", "--no-flush")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
