"""RNG: the state of every random generator that is in use, as one item of a Session."""

import random

from libckpt.core import _frameworks


class RNG:
    """The generators of python, numpy, torch, and torch's GPUs."""

    def state_dict(self):
        version, internal, gauss = random.getstate()
        state = {"python": [version, list(internal), gauss]}
        for adapter in _frameworks.adapters():
            state |= adapter.rng_state()
        return state

    def seed(self, seed):
        """Sets all of them, as for a rank that begins."""
        random.seed(seed)
        for adapter in _frameworks.adapters():
            adapter.seed(seed)

    def load_state_dict(self, state):
        """States of more GPUs than there are here are left out."""
        self.check(state)
        random.setstate(_of_python(state))
        for name in _frameworks.names():
            if name in state:
                _frameworks.adapter_of(name).load_rng(state)

    def check(self, state):
        """Raises ValueError, or what Python does, for a state that load_state_dict cannot take.

        Tensors may be given as something that stands for them: they are looked at by the sizes.
        """
        random.Random(0).setstate(_of_python(state))
        for name in _frameworks.names():
            if name in state:
                _frameworks.adapter_of(name).check_rng(state)


def _of_python(state):
    version, internal, gauss = state["python"]
    return version, tuple(internal), gauss
