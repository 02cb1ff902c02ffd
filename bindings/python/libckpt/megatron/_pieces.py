"""Pieces: the model and the optimizer of this rank as arrays of libckpt.

They are collected once, and again when the optimizer has other tensors than before: there are
thousands, and asking Megatron for each of them takes longer than to copy them.
"""

import json

from libckpt.errors import Unsupported
from libckpt.megatron import _optimizers, _parallel, _places

STATE = "optimizer."  # Before the names of optimizer state, with that of the state and a dot.


class Pieces:
    def __init__(self, model, optimizer, rank):
        self.model = model if isinstance(model, (list, tuple)) else [model]
        self.parts = _optimizers.parts_of(optimizer) if optimizer is not None else []
        self._rank = rank
        self._tensors, self.modules = _places.places_of(self.model, rank)
        self._arrays, self._states = [], []
        self._seen = None  # Addresses of what the arrays were made of.

    def arrays(self):
        """Arrays of the model and of all state that the optimizer has by now."""
        if not self._are_as_before():
            found = self._found()
            self._arrays = self._of_model() + self._of_optimizer(found)
            self._seen = self._addresses()
            self._states = [
                (each.inner, each.main, key, tensor)
                for each, tensors in found for key, tensor in tensors.items() if key in each.state
            ]  # fmt: skip
        return self._arrays

    def _are_as_before(self):
        states_are_same = all(
            inner.state.get(main, {}).get(key) is tensor
            for inner, main, key, tensor in self._states
        )
        return states_are_same and self._seen == self._addresses()

    def _addresses(self):
        """The addresses of the model, and how many parameters have state."""
        counts = [len(_optimizers.inner_of(part).state) for part in self.parts]
        return counts, [tensor.data_ptr() for tensor, _ in self._tensors.values()]

    def _found(self):
        owned = [each for part in self.parts for each in _optimizers.owned_by(part)]
        return [(each, each.tensors()) for each in owned]

    def _of_model(self):
        places = {id(p): (t, p) for t, ps in self._tensors.values() for p in ps}.values()
        return [place.array("model.", tensor.detach()) for tensor, place in places]

    def _of_optimizer(self, found):
        return [
            place.stretch(f"{STATE}{key}.", begin, memory, has_copies)
            for key, place, begin, memory, has_copies in self._stretches(found)
        ]

    def _stretches(self, found):
        for owned, tensors in found:
            if id(owned.parameter) not in self._tensors:
                raise Unsupported(
                    f"the optimizer has a parameter {list(owned.parameter.shape)} that the model's "
                    "sharded_state_dict() does not name"
                )
            _, places = self._tensors[id(owned.parameter)]
            for key, tensor in tensors.items():
                if not tensor.is_contiguous():
                    raise Unsupported(f'the optimizer\'s "{key}" of "{places[0].name}" has gaps')
                flat = tensor.detach().view(-1)
                for place, begin, memory in _places.stretches(places, owned.begin, flat):
                    yield key, place, begin, memory, not owned.is_divided

    def relaid(self, saved_by):
        """(arrays, those of them that are to be put in order) for a step that other numbers of
        tensor parallel ranks saved. `saved_by`: by the number here, the number there."""
        arrays, relaid = self._of_model(), []
        for key, place, begin, memory, has_copies in self._stretches(self._found()):
            there = saved_by.get(place.parts, place.parts)
            if place.columns and there != place.parts:
                relaid.append(_places.Relaid(f"{STATE}{key}.", place, begin, memory, there))
                arrays.append(relaid[-1].array)
            else:
                arrays.append(place.stretch(f"{STATE}{key}.", begin, memory, has_copies))
        return arrays, relaid

    def geometry(self):
        """A reader's knowledge of the arrays before it can ask for them, as text."""
        keys, has_step = _optimizers.state_of(self.parts)
        return json.dumps({"keys": keys, "has_step": has_step, **_parallel.sizes()})
