"""RNG: the state of every random generator that is in use, as one item of a Session."""

import logging
import sys

logger = logging.getLogger("libckpt")


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
        """States of more GPUs than there are here are left out."""
        import random

        self.check(state)
        random.setstate(_of_python(state))
        if "numpy" in state:
            import numpy

            numpy.random.set_state(tuple(state["numpy"]))
        if "torch" in state:
            import torch

            torch.set_rng_state(state["torch"])
            self._load_gpus(torch, state.get("cuda", ()))

    @staticmethod
    def _load_gpus(torch, states):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for gpu, state in enumerate(states[:count]):
            torch.cuda.set_rng_state(state, gpu)
        if len(states) > count:
            logger.warning(
                "libckpt: restore: the random generators of %d GPU(s) were saved and %d are here: "
                "the others are left out",
                len(states), count,
            )  # fmt: skip

    def check(self, state):
        """Raises ValueError, or what Python does, for a state that load_state_dict cannot take.

        Tensors may be given as something that stands for them: they are looked at by the sizes.
        """
        import random

        random.Random(0).setstate(_of_python(state))
        if "numpy" in state and (len(state["numpy"]) != 5 or state["numpy"][0] != "MT19937"):
            raise ValueError(f"the state of numpy's generator is {state['numpy'][:1]}")
        torch = sys.modules.get("torch")
        if torch is None or "torch" not in state:
            return
        parts = [(state["torch"], torch.get_rng_state())]
        if torch.cuda.is_available():
            wanted = torch.cuda.get_rng_state()
            parts += [(part, wanted) for part in state.get("cuda", ())[: torch.cuda.device_count()]]
        for part, wanted in parts:
            shape = getattr(part, "shape", None) or part.node["shape"]
            if list(shape) != list(wanted.shape):
                raise ValueError(
                    f"the state of a generator of torch has {list(shape)} bytes there and "
                    f"{list(wanted.shape)} here"
                )


def _of_python(state):
    version, internal, gauss = state["python"]
    return version, tuple(internal), gauss
