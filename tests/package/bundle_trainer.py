"""A trainer by the Python package of an unpacked bundle, with nothing but Python itself.

  bundle_trainer.py BUNDLE CHECKPOINTS LIFE

Life 1 begins; the next goes on with the state of the newest step.
"""

import sys

import libckpt


class Counter:
    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def must(is_true, what):
    if not is_true:
        sys.exit(f"bundle_trainer: {what}")


def main(bundle, checkpoints, life):
    must(libckpt.__file__.startswith(bundle + "/"), f"{libckpt.__file__} is not of {bundle}")
    counter = Counter()
    session = libckpt.init("bundle", dir=checkpoints)
    items = {"counter": counter}
    start = session.restore_or(items, default=0)
    must((start > 0) == (life > 1), f"life {life} starts after step {start}")
    must(counter.value == 10 * start, f"step {start} comes back as {counter.value}")
    for step in range(start + 1, start + 4):
        counter.value = 10 * step
        session.save(step, items)
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
