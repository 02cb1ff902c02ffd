"""RNG: the state of every random generator that is in use, as one item of a Session."""

import sys


class RNG:
    """The generators of python, numpy, torch, and torch's GPUs."""

    def state_dict(self):
        import random

        version, internal, gauss = random.getstate()
        state = {"python": [version, list(internal), gauss]}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            state["numpy"] = list(numpy.random.get_state())
        torch = sys.modules.get("torch")
        if torch is not None:
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def seed(self, seed):
        """Sets all of them, as for a rank that begins."""
        import random

        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed % (1 << 32))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)

    def load_state_dict(self, state):
        import random

        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        if "numpy" in state:
            import numpy

            numpy.random.set_state(tuple(state["numpy"]))
        if "torch" in state:
            import torch

            torch.set_rng_state(state["torch"])
            if "cuda" in state and torch.cuda.is_available():
                torch.cuda.set_rng_state_all(state["cuda"])
