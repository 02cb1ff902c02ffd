"""Optimizers: their state by the names of its parameters, and filled where it is, bit for bit.

torch numbers the parameters of an optimizer in the order in which it was given them, and casts the
state that it loads to the type of the parameter. Here a parameter has the name that it has among
the items ("model.0.weight"), and its state keeps the type that it was saved with. A parameter
that belongs to no item has torch's number as its name.
"""

import copy
from itertools import chain, islice
from operator import attrgetter

import torch
from torch.optim import Optimizer

from libckpt.adapters.torch import _modules
from libckpt.adapters.torch._tensors import is_tensor
from libckpt.core import _compare, _item_kinds, _tensors

# Among the options of a group; torch puts them there, and not the optimizer's class.
OF_SCHEDULERS = ("param_names", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
                 "initial_momentum", "swa_lr")  # fmt: skip
HOST_KEYS = ("step",)  # On the host wherever the parameter is, unless the step runs on the GPU.
# Their constructor makes the state that a step wants; others make what is not there.
MAKE_STATE = (torch.optim.Adagrad,)


class State(dict):
    """The state_dict() of the saved optimizer, with the names behind torch's numbers."""

    def __init__(self, content, names, away):
        super().__init__(content)
        self.names = names  # By number.
        self.away = away  # Keys of state that was on the host while the parameters were on a GPU.


def names_of(items, state_of=_modules.state_of):
    """By id, the name that each tensor has among the items, at any depth of containers."""
    names = {}
    for name, item in _item_kinds.parts_in(items.items(), _has_parameters):
        if is_tensor(item):
            names.setdefault(id(item), name)
            continue
        found = _modules.parameters_of(item, state_of(item))
        # Backwards, since the first name of a parameter counts.
        ids, parts = map(id, reversed(found.values())), reversed(found)
        names = dict(zip(ids, map(f"{name}.".__add__, parts))) | names
    return names


def _has_parameters(item):
    return _modules.is_module(item) or is_tensor(item)


def by_names(optimizer, names):
    """(state_dict() with names for numbers, keys of state that is away from its parameters).

    No keys (None): state_dict() has another form than torch's, and is as it was.
    """
    if not _has_say(optimizer):
        named = _stock_by_names(optimizer, names)
        if named is not None:
            return named
    state = optimizer.state_dict()
    if not isinstance(state, dict) or set(state) != {"state", "param_groups"}:
        return state, None
    groups = [group["params"] for group in optimizer.param_groups]
    numbers = [group["params"] for group in state["param_groups"]]
    if list(map(len, groups)) != list(map(len, numbers)):
        return state, None
    parameters = dict(zip(chain(*numbers), chain(*groups)))
    called = _called(parameters.values(), names, parameters)
    if called is None or not state["state"].keys() <= parameters.keys():
        return state, None
    called = dict(zip(parameters, called))
    return _renamed(state, called), _away(map(parameters.get, state["state"]), state["state"])


def _stock_by_names(optimizer, names):
    """The same, made from what state_dict() would be made from; none: it would fail, or have no
    such form. Numbers for ten thousand parameters would take as long as the copies of all."""
    groups, state = optimizer.param_groups, optimizer.state
    parameters = [*chain.from_iterable(group["params"] for group in groups)]
    called = _called(parameters, names, range(len(parameters)))
    if called is None:
        return None
    ids, with_state = list(map(id, parameters)), list(map(id, state))
    if ids == with_state:  # The usual case.
        states = dict(zip(called, state.values()))
    else:
        by_parameter = dict(zip(ids, called))
        if not by_parameter.keys() >= set(with_state):
            return None
        states = dict(zip(map(by_parameter.get, with_state), state.values()))
    away, of_each = _away(state, state), iter(called)
    packed = []
    for group in groups:
        packed.append({key: value for key, value in group.items() if key != "params"})
        packed[-1]["params"] = [*islice(of_each, len(group["params"]))]  # Last, as torch has it.
    return {"state": states, "param_groups": packed}, away


def _has_say(optimizer):
    """Whether somebody has a say in what state_dict() answers."""
    is_stock = getattr(type(optimizer), "state_dict", None) is Optimizer.state_dict
    if not is_stock or "state_dict" in vars(optimizer):
        return True
    hooks = (optimizer._optimizer_state_dict_pre_hooks, optimizer._optimizer_state_dict_post_hooks)
    return any(hooks)


def _called(parameters, names, numbers):
    """The name of each parameter, one after another. None: two have one name."""
    called = list(map(names.get, map(id, parameters)))
    if None in called:
        called = [str(n) if name is None else name for n, name in zip(numbers, called)]
    return called if len(set(called)) == len(called) else None


def _away(parameters, state):
    """The keys of state on the host whose parameters are on a GPU."""
    parameters, found = list(parameters), set()
    if all(map(attrgetter("is_cpu"), parameters)):
        return []
    for parameter, parts in zip(parameters, state.values()):
        if not parameter.is_cpu and isinstance(parts, dict):
            found.update(str(key) for key, part in parts.items()
                         if is_tensor(part) and part.is_cpu)  # fmt: skip
    return sorted(found)


def by_numbers(named, away):
    """The other way round."""
    names = [name for group in named["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    return State(_renamed(named, numbers), names, away)


def _renamed(state, names):
    """The state with other names, or numbers, of the parameters."""
    groups = [
        {**group, "params": [names[name] for name in group["params"]]}
        for group in state["param_groups"]
    ]
    return {"state": {names[k]: parts for k, parts in state["state"].items()},
            "param_groups": groups}  # fmt: skip


def unwrapped(optimizer):
    """The optimizer inside of accelerate's wrapper."""
    while type(optimizer).__module__.startswith("accelerate."):
        optimizer = optimizer.optimizer
    return optimizer


def stock_of(optimizer):
    """The optimizer that keeps the state; None: its class has a say in what is loaded, or a hook
    has."""
    optimizer = unwrapped(optimizer)
    kind = type(optimizer)
    if not isinstance(optimizer, Optimizer) or "load_state_dict" in vars(optimizer):
        return None
    is_stock = (
        kind.load_state_dict is Optimizer.load_state_dict
        and kind.state_dict is Optimizer.state_dict
    )
    hooks = (optimizer._optimizer_load_state_dict_pre_hooks,
             optimizer._optimizer_load_state_dict_post_hooks)  # fmt: skip
    return optimizer if is_stock and not any(hooks) else None


def match(optimizer, state, names):
    """By number of the state, the parameter here. Raises ValueError when they do not fit."""
    groups = [group["params"] for group in optimizer.param_groups]
    numbers = [group["params"] for group in state["param_groups"]]
    if len(groups) != len(numbers):
        raise ValueError(
            f"it has {len(numbers)} group(s) there and {len(groups)} here: groups that a training "
            "adds on its way, as when it unfreezes layers, are to be added before the restore"
        )
    flat = [parameter for group in groups for parameter in group]
    here = {names.get(id(p), str(i)): p for i, p in enumerate(flat)}
    there = getattr(state, "names", None)
    found = {}
    for i, (own, saved) in enumerate(zip(groups, numbers)):
        if there is None:
            wanted = dict(zip(saved, own))
        else:
            wanted = {number: here.get(there[number]) for number in saved}
        members = {id(parameter) for parameter in own}
        strangers = [n for n, p in wanted.items() if id(p) not in members]
        if strangers or len(own) != len(saved):
            raise ValueError(
                f"group {i} has {len(saved)} parameter(s) there and {len(own)} here"
                + ("" if there is None else _strange_names(own, saved, here, there))
            )
        found.update(wanted)
    return found


def _strange_names(own, saved, here, there):
    """The names of parameters that a group has only there, and only here."""
    members = {id(parameter) for parameter in own}
    names_here = [name for name, parameter in here.items() if id(parameter) in members]
    names_there = [there[number] for number in saved]
    only = {
        "there": [name for name in names_there if name not in names_here],
        "here": [name for name in names_here if name not in names_there],
    }
    texts = [f"{_compare.listed(names)} only {where}" for where, names in only.items() if names]
    return f" ({'; '.join(texts)})" if texts else ""


def why_another_kind(optimizer, state):
    """Why the state seems to be of another class of optimizers; an empty text: it does not.

    Another version of torch may lack options of a class, or have more, but not both.
    """
    own = set(getattr(optimizer, "defaults", ()))
    saved = set().union(*state["param_groups"]) - {"params", *OF_SCHEDULERS}
    lacking = sorted(own - saved)
    strange = sorted(saved.difference(own, *optimizer.param_groups))
    if not lacking or not strange:
        return ""
    return f"it was saved with {', '.join(strange)} and has {', '.join(lacking)} here"


def load(optimizer, state, names):
    """Fills the optimizer. Raises ValueError, before it changes anything, when it does not fit."""
    parameters = match(optimizer, state, names)
    stock = stock_of(optimizer)
    if stock is None:
        optimizer.load_state_dict(_in_order(optimizer, state, parameters))
        return
    away = getattr(state, "away", ())
    for group, saved in zip(stock.param_groups, state["param_groups"]):
        for number in saved["params"]:
            _fill_state(stock, parameters[number], state["state"].get(number), saved, away)
        for key, value in saved.items():
            if key != "params":
                group[key] = _fill_option(group.get(key), value)
    # It completes what an older torch did not have.
    stock.__setstate__({"state": stock.state, "param_groups": stock.param_groups})


def _fill_state(optimizer, parameter, saved, group, away):
    makes_state = isinstance(optimizer, MAKE_STATE)
    if saved is None and not makes_state:
        optimizer.state.pop(parameter, None)
        return
    own, saved = optimizer.state[parameter], saved or {}
    is_on_gpu = bool(group.get("capturable") or group.get("fused"))
    filled = {}
    for key, value in saved.items():
        is_host = key in away or (key in HOST_KEYS and not is_on_gpu)
        filled[key] = _placed(own.get(key), value, "cpu" if is_host else parameter.device)
    if not makes_state:
        own.clear()
    own.update(filled)


def _placed(own, value, device):
    if is_tensor(value):
        if is_tensor(own) and own.dtype == value.dtype and own.shape == value.shape:
            _tensors.copy(value, own)
            return own
        return value.to(device)
    if isinstance(value, dict):
        own = own if isinstance(own, dict) else {}
        return {key: _placed(own.get(key), part, device) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_placed(None, part, device) for part in value)
    return copy.deepcopy(value)


def _fill_option(own, value):
    if is_tensor(value) and is_tensor(own) and own.shape == value.shape:
        _tensors.copy(value, own)
        return own
    return value.clone() if is_tensor(value) else copy.deepcopy(value)


def _in_order(optimizer, state, parameters):
    """The state with the numbers that torch gives to the parameters here."""
    flat = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(flat)}
    here = {number: numbers[id(parameter)] for number, parameter in parameters.items()}
    groups = [
        {**saved, "params": [numbers[id(parameter)] for parameter in group["params"]]}
        for group, saved in zip(optimizer.param_groups, state["param_groups"])
    ]
    found = {here[number]: parts for number, parts in state["state"].items()}
    return {"state": dict(sorted(found.items())), "param_groups": groups}
