"""Owners: modules, optimizers and scalers among the items of one call.

The state_dict() of torch's GradScaler makes Python numbers of two tensors, for which it waits until
the GPU has done all that is queued. A capture copies the tensors as they lie; a restore makes the
numbers.
"""

import json
import logging

import torch
from torch import amp

from libckpt.adapters.torch import _distributed, _modules, _optimizers
from libckpt.core import _frameworks, _item_kinds, _tensors
from libckpt.core._fill import errors_named

logger = logging.getLogger("libckpt")

_SCALER_READERS = ("state_dict", "get_scale", "_get_scale_async", "_get_growth_tracker")
_text = json.JSONEncoder(separators=(",", ":")).encode


def is_optimizer(item):
    return isinstance(item, torch.optim.Optimizer)


class Owners(_frameworks.Owners):
    """`names` of parameters by id, where the modules are not among these items."""

    def __init__(self, items, for_capture, names=None):
        self._items = items
        # A restore gives tensors back as state_dict() would: a capture only reads them.
        self._state_function = _modules.state_of if for_capture else _modules.own_state_of
        self._names = names  # Those of parameters, once an optimizer wants them.
        self._states = {}  # Those of modules, by id.
        self._states_of_optimizers = []  # (Prefix of its names, those of tensors) of each.

    def flatten(self, flattener, name, owner):
        if is_optimizer(owner):
            return self._flatten_optimizer(flattener, name, owner)
        state = self._state_of(owner) if _modules.is_module(owner) else _state_of_scaler(owner)
        return None if state is None else flattener.flatten_state(name, state)

    def _state_of(self, module):
        found = self._states.get(id(module))
        if found is None:
            found = self._states[id(module)] = self._state_function(module)
        return found

    def _own_names(self):
        if self._names is None:
            self._names = _optimizers.names_of(self._items, self._state_of)
        return self._names

    def _flatten_optimizer(self, flattener, name, optimizer):
        count = len(flattener.tensors)
        state, away = _optimizers.by_names(optimizer, self._own_names())
        if away is None:
            return f'{{"s":{flattener.flatten(name, state)}}}'
        text = f'{{"g":[{_text(away)},{flattener.flatten_dictionary(name, state)}]}}'
        self._states_of_optimizers.append((f"{name}.state.", list(flattener.tensors)[count:]))
        return text

    def replicas(self, tensors):
        """By name, the kind of all that DistributedDataParallel copies, and of its optimizers."""
        kinds = {}
        for name, module in _item_kinds.parts_in(self._items.items(), _modules.is_module):
            for part, is_buffer in _modules.declared(module).items():
                kinds[f"{name}.{part}"] = _item_kinds.BUFFER if is_buffer else _item_kinds.PARAMETER
        found = {name: kind for name, kind in kinds.items() if name in tensors}
        for prefix, names in self._states_of_optimizers if found else ():
            for name in names:
                owner = name.removeprefix(prefix)
                while owner and kinds.get(owner) is not _item_kinds.PARAMETER:
                    owner = owner.rpartition(".")[0]
                if owner:
                    found[name] = _item_kinds.STATE
        return found

    # --- restoring

    def make_state(self):
        found = _item_kinds.parts_in(self._items.items(), is_optimizer)
        undone = [
            _distributed.make_state(name, _optimizers.unwrapped(optimizer))
            for name, optimizer in found
        ]
        return [undo for undo in undone if undo is not None]

    def check(self, name, owner, value, strict):
        if strict and _modules.is_module(owner):
            _modules.check(name, owner, value, is_before=True)
        if not is_optimizer(owner):
            return _modules.is_module(owner)
        with errors_named(name, owner):
            _optimizers.match(owner, value, self._own_names())
        problem = _optimizers.why_another_kind(owner, value)
        if problem:
            logger.warning(
                'libckpt: restore: item "%s" is a %s, and seems to have been an optimizer of '
                "another class when it was saved: %s; it trains on without what it lacks",
                name, type(owner).__name__, problem,
            )  # fmt: skip
        return True

    def fill(self, name, owner, value, strict):
        if _modules.is_module(owner):
            _modules.fill(name, owner, value, strict)
            return True
        is_state = isinstance(value, dict) and set(value) == {"state", "param_groups"}
        if not is_optimizer(owner) or not is_state:
            return False
        with errors_named(name, owner):
            _optimizers.load(owner, value, self._own_names())
        return True

    def in_place(self, tensors):
        modules, states = {}, {}
        for name, _ in _item_kinds.parts_in(self._items.items(), _modules.is_module):
            modules.update({k: t for k, t in tensors.items() if k.startswith(f"{name}.")})
        for name, optimizer in _item_kinds.parts_in(self._items.items(), is_optimizer):
            if _optimizers.stock_of(optimizer) is not None:
                prefix = f"{name}.state."
                states.update({k: t for k, t in tensors.items() if k.startswith(prefix)})
        return modules, {n: t for n, t in states.items() if not _tensors.why_not_writable(t)}


def _state_of_scaler(owner):
    """Its state_dict(), with Numbers for the values that lie in tensors; None: it is no scaler, or
    one whose class has methods of its own."""
    stock = getattr(amp, "GradScaler", None)
    if stock is None or not isinstance(owner, stock) or not owner.is_enabled():
        return None
    kind = type(owner)
    if any(getattr(kind, name) is not getattr(stock, name, None) for name in _SCALER_READERS):
        return None
    scale, tracker = getattr(owner, "_scale", None), getattr(owner, "_growth_tracker", None)
    if scale is None or tracker is None:
        return None  # It has scaled nothing yet: its numbers are Python's.
    return {
        "scale": _item_kinds.Number(scale),
        "growth_factor": owner.get_growth_factor(),
        "backoff_factor": owner.get_backoff_factor(),
        "growth_interval": owner.get_growth_interval(),
        "_growth_tracker": _item_kinds.Number(tracker),
    }
