"""Modules: the state of torch's modules, without a new tensor for each parameter, and back.

state_dict() makes the same names with detached tensors. For ten thousand parameters that takes
longer than to copy them. Where anybody has a say in it - a class or a module with a method of
its own, a hook, a tensor of another kind - state_dict() is called as ever.

Names are those of the module that is trained: what DistributedDataParallel, torch.compile and other
wrappers of torch put into them ("module.", "_orig_mod.") is left out.
"""

import weakref

import torch
from torch import nn

from libckpt import errors
from libckpt.core import _tensors

STATE_METHODS = ("state_dict", "_save_to_state_dict", "get_extra_state")
WRAPPERS = {  # Classes of torch, and under which name each has the module that it wraps.
    "DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}  # fmt: skip

# By class: (whether stock, the name of the module that it wraps).
_kinds = weakref.WeakKeyDictionary()


def is_module(item):
    return isinstance(item, nn.Module)


def state_of(module):
    """The entries of module.state_dict() by plain names; their tensors may not be detached."""
    plain = {nn.Parameter, torch.Tensor, getattr(nn, "Buffer", torch.Tensor)}
    found = {}
    is_whole = all(_is_function_of_torch(getattr(nn.Module, name)) for name in STATE_METHODS)
    if is_whole and _collect(plain, module, "", found):
        return found
    return own_state_of(module)


def own_state_of(module):
    """The entries of module.state_dict(), by plain names."""
    state = module.state_dict()
    return {plain: state[own] for own, plain in plain_names(module, state).items()}


def plain_names(module, names):
    """By name in its state_dict(), the name without what wrappers add."""
    prefixes = dict(_prefixes(module))
    if all(own == plain for own, plain in prefixes.items()):
        return {name: name for name in names}
    found = {}
    for name in names:
        head = name.rpartition(".")[0]
        while head and f"{head}." not in prefixes:
            head = head.rpartition(".")[0]
        own = f"{head}." if head else ""
        found[name] = prefixes[own] + name[len(own) :]
    return found


def declared(module):
    """By plain name, whether it is a buffer: of what DistributedDataParallel keeps the same on all
    ranks. It is the module itself, or what another wrapper has in it."""
    stock = nn.parallel.DistributedDataParallel
    while not isinstance(module, stock):
        inside = _kind_of(type(module))[1]
        if inside is None:
            return {}
        module = getattr(module, inside)
    own = module.module
    ignored = set(getattr(module, "parameters_to_ignore", ()))
    parts = {name: False for name, _ in own.named_parameters(remove_duplicate=False)}
    if module.broadcast_buffers:
        parts |= {name: True for name, _ in own.named_buffers(remove_duplicate=False)}
    plain = plain_names(own, parts)
    return {plain[name]: is_buffer for name, is_buffer in parts.items() if name not in ignored}


def without_wrappers(name):
    """A name as it was before wrappers were left out, without what they had added."""
    parts = name.split(".")
    return ".".join(part for part in parts if part not in set(WRAPPERS.values()))


def parameters_of(module, state):
    """By plain name, the parameters; `state` is what state_of() answered."""
    if set(map(type, state.values())) == {nn.Parameter}:  # Thousands of them, mostly.
        return state
    found = {name: part for name, part in state.items() if isinstance(part, nn.Parameter)}
    if found:
        return found
    own = dict(module.named_parameters())  # Its state has others in their place, or none.
    return {plain: own[name] for name, plain in plain_names(module, own).items()}


def _prefixes(module, own="", plain=""):
    yield own, plain
    inside = _kind_of(type(module))[1]
    for name, child in module._modules.items():  # Also one that has two names.
        if child is not None:
            beyond = plain if name == inside else f"{plain}{name}."
            yield from _prefixes(child, f"{own}{name}.", beyond)


def _kind_of(kind):
    found = _kinds.get(kind)
    if found is None:
        is_stock = all(getattr(kind, name) is getattr(nn.Module, name) for name in STATE_METHODS)
        of_torch = [base for base in kind.__mro__ if base.__module__.startswith("torch.")]
        inside = [WRAPPERS[base.__name__] for base in of_torch if base.__name__ in WRAPPERS]
        found = _kinds[kind] = (is_stock, inside[0] if inside else None)
    return found


def _is_function_of_torch(function):
    """Nobody has put another one in its place."""
    file = nn.modules.module.__file__
    return getattr(getattr(function, "__code__", None), "co_filename", "") == file


def _collect(plain, module, prefix, found):
    """False: somebody has a say in it."""
    own = module.__dict__
    is_stock, inside = _kind_of(type(module))
    if not is_stock or any(name in own for name in STATE_METHODS):
        return False
    if own.get("_state_dict_hooks") or own.get("_state_dict_pre_hooks"):
        return False
    parts = [own.get(name) for name in ("_parameters", "_buffers", "_modules")]
    if not all(isinstance(part, dict) for part in parts):  # As those of TorchScript.
        return False
    not_persistent = own.get("_non_persistent_buffers_set", ())
    for tensors, left_out in ((parts[0], ()), (parts[1], not_persistent)):
        there = {
            prefix + name: tensor
            for name, tensor in tensors.items()
            if tensor is not None and name not in left_out
        }
        if not plain.issuperset(map(type, there.values())):
            return False
        found.update(there)
    return all(
        child is None
        or _collect(plain, child, prefix if name == inside else f"{prefix}{name}.", found)
        for name, child in parts[2].items()
    )


def check(name, module, value, is_before=False):
    """Raises for what a strict fill() refuses. `is_before`: nothing is filled yet; where names are
    missing, too, the one who compares all of them has more to say."""
    if not isinstance(value, dict):
        raise errors.InvalidArgument(
            f'restore: item "{name}" is a module here, and was saved as a '
            f"{type(value).__name__}; with strict=False it stays as it is"
        )
    own = module.state_dict()
    state = set(plain_names(module, own).values())
    there = _without_wrappers(value, state)
    unknown = [key for key in there if key not in state]
    if unknown and not (is_before and state - there.keys()):
        raise errors.InvalidArgument(
            f'restore: module "{name}" has no {", ".join(unknown[:5])}; '
            "with strict=False that is left out"
        )


def fill(name, module, value, strict):
    """Gives a module what was restored; most of it is there already."""
    if strict:
        check(name, module, value)
    if not isinstance(value, dict):
        return
    own = module.state_dict()
    plain = plain_names(module, own)
    state = {plain[key]: part for key, part in own.items()}
    value = _without_wrappers(value, state)
    # Memory is not copied onto itself.
    rest = value
    if not _has_loading_code(module):
        rest = {
            key: part for key, part in value.items() if not _tensors.is_same(part, state.get(key))
        }
    if not strict:
        rest = {
            key: part
            for key, part in rest.items()
            if key in state and getattr(part, "shape", None) == getattr(state[key], "shape", None)
        }
    if rest:
        names = {there: here for here, there in plain.items()}
        with torch.no_grad():
            module.load_state_dict(
                {names.get(key, key): part for key, part in rest.items()}, strict=False
            )


def _without_wrappers(value, state):
    """By the names of the state: older saves have those of wrappers, which are left out since."""
    found = {}
    for key, part in value.items():
        other = key if key in state else without_wrappers(key)
        found[other if other in state and other not in value else key] = part
    return found


def _has_loading_code(module):
    """Whether the module wants to know what is loaded: by a hook, or code that is not torch's."""
    return any(
        part._load_state_dict_pre_hooks
        or part._load_state_dict_post_hooks
        or not type(part).load_state_dict.__module__.startswith("torch.nn.")
        or not type(part)._load_from_state_dict.__module__.startswith("torch.nn.")
        for part in module.modules()
    )
