"""Owned: where the tensors lie that only guarded optimizers change, asked anew at each save."""

import array
import sys

from libckpt import _core, _tensors, _views


class Owned:
    """Of the optimizers of one registration."""

    def __init__(self):
        self._memory = None  # As _core.memory_of told it.
        self._ranges = {}

    def ranges(self, optimizers):
        """Bytes by address, of parameters and state. The very same dictionary as before when all of
        them lie where they lay; it is not to be changed."""
        parts = []
        for optimizer in _tensors.owners(optimizers):
            for group in optimizer.param_groups:
                parts.extend(group["params"])
            for state in optimizer.state.values():
                if isinstance(state, dict):
                    parts.extend(state.values())
        if not parts:
            self._memory, self._ranges = None, {}
            return self._ranges
        tensor_type = sys.modules["torch"].Tensor
        memory = _core.memory_of(_views.exchange_api(), tensor_type, parts)
        if memory is None:  # This torch, or a kind of tensor, does not tell it in one call.
            self._memory, self._ranges = None, _tensors.guarded_ranges(optimizers)
        elif memory != self._memory:
            numbers = array.array("Q", memory)
            self._memory = memory
            self._ranges = dict(zip(numbers[::2], numbers[1::2], strict=True))
            self._ranges.pop(0, None)
        return self._ranges
