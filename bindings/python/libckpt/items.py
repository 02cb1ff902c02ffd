"""What a trainer saves, taken apart into named tensors and plain data, and put together again.

The structure is JSON, and says of each part what it was; floats and integers come back exactly.
What JSON cannot hold is pickled by Python and carried as opaque bytes, or refused when the session
is free of pickles.
"""

import base64
import json
import math
import pickle
import sys

from libckpt import _tensors
from libckpt.errors import Corruption, InvalidArgument, Unsupported


class RNG:
    """The state of every generator that is in use: python, numpy, torch, and torch's GPUs."""

    def state_dict(self):
        import random

        version, internal, gauss = random.getstate()
        state = {"python": [version, list(internal), gauss]}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, position, has_gauss, cached = numpy.random.get_state()
            state["numpy"] = [kind, keys, position, has_gauss, cached]
        torch = sys.modules.get("torch")
        if torch is not None:
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state_all()
        return state

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


def is_module(item):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.nn.Module)


def has_state(item):
    return callable(getattr(item, "state_dict", None))


def can_load(item):
    return callable(getattr(item, "load_state_dict", None))


class Taker:
    """Takes items apart. `tensors` and `structure` are what is to be saved."""

    def __init__(self, allow_pickle=True):
        self.tensors = {}
        self.allow_pickle = allow_pickle

    def take(self, name, value):
        """The structure of `value`; its tensors are added under names that begin with `name`."""
        if _tensors.is_tensor(value):
            return self._tensor(name, value)
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return {"v": value}
        if type(value) is float:
            return {"v": value} if math.isfinite(value) else {"f": repr(value)}
        if isinstance(value, bytes):
            return {"b": base64.b64encode(value).decode()}
        if has_state(value) and not isinstance(value, type):
            return {"s": self.take(name, value.state_dict())}
        if isinstance(value, dict):
            return self._dictionary(name, value)
        if type(value) in (list, tuple):
            parts = [self.take(f"{name}.{i}", part) for i, part in enumerate(value)]
            return {"l" if type(value) is list else "u": parts}
        return self._pickled(name, value)

    def _tensor(self, name, value):
        while name in self.tensors:  # Of {"a.b": x, "a": {"b": y}}.
            name += "'"
        self.tensors[name] = value
        return {"t": name, **_tensors.describe(value)}

    def _dictionary(self, name, value):
        if all(type(key) is str for key in value):
            return {"d": {key: self.take(f"{name}.{key}", part) for key, part in value.items()}}
        pairs = [
            [self.take(f"{name}.key", key), self.take(f"{name}.{key}", part)]
            for key, part in value.items()
        ]
        return {"m": pairs}

    def _pickled(self, name, value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if not self.allow_pickle:
            raise Unsupported(
                f'item "{name}" is a {kind}, which JSON cannot hold, and this session is free of '
                "pickles: save plain numbers, strings, lists and dictionaries instead"
            )
        try:
            return {"p": base64.b64encode(pickle.dumps(value)).decode()}
        except Exception as error:
            raise InvalidArgument(
                f'item "{name}" is a {kind} and cannot be saved ({error}): leave it out, or give it '
                "state_dict and load_state_dict"
            ) from error


class Giver:
    """Puts items together from a structure and the tensors that were restored."""

    def __init__(self, tensors, allow_pickle=True):
        self.tensors = tensors
        self.allow_pickle = allow_pickle

    def give(self, node):
        try:
            (kind, value), *_ = node.items()
            return getattr(self, f"_give_{kind}")(value)
        except (AttributeError, KeyError, ValueError, TypeError) as error:
            raise Corruption(f"the structure of the saved items is damaged: {error!r}") from error

    def _give_t(self, name):
        return self.tensors[name]

    def _give_v(self, value):
        return value

    def _give_f(self, value):
        return float(value)

    def _give_b(self, value):
        return base64.b64decode(value)

    def _give_s(self, node):
        return self.give(node)

    def _give_d(self, parts):
        return {key: self.give(part) for key, part in parts.items()}

    def _give_m(self, pairs):
        return {self.give(key): self.give(part) for key, part in pairs}

    def _give_l(self, parts):
        return [self.give(part) for part in parts]

    def _give_u(self, parts):
        return tuple(self.give(part) for part in parts)

    def _give_p(self, value):
        if not self.allow_pickle:
            raise Unsupported("a saved item was pickled, and this session is free of pickles")
        return pickle.loads(base64.b64decode(value))


def take_all(items, allow_pickle=True):
    """(structure as JSON, tensors by name) of a dictionary of items."""
    if not isinstance(items, dict) or not all(type(name) is str for name in items):
        raise InvalidArgument("items: a dictionary from names to what is to be saved is wanted")
    taker = Taker(allow_pickle)
    structure = {name: taker.take(name, value) for name, value in items.items()}
    return json.dumps(structure, separators=(",", ":")), taker.tensors
