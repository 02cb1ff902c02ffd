"""Modules: the state of torch's modules, without a new tensor for each parameter.

What state_dict() makes is the same names with detached tensors; of ten thousand parameters that
takes longer than to copy them. Where anybody has a say in it - a class or a module with a method of
its own, a hook, a tensor of another kind - state_dict() is called as ever.
"""

import sys
import weakref

SAYS = ("state_dict", "_save_to_state_dict", "get_extra_state")

_are_stock = weakref.WeakKeyDictionary()  # Of classes, whether they leave the state to torch.


def state_of(module):
    """What module.state_dict() has, its tensors perhaps not detached."""
    from torch import Tensor, nn

    plain = {nn.Parameter, Tensor, getattr(nn, "Buffer", Tensor)}
    found = {}
    is_whole = all(_is_torchs(getattr(nn.Module, name)) for name in SAYS)
    return found if is_whole and _collect(nn, plain, module, "", found) else module.state_dict()


def _is_torchs(function):
    """Nobody has put another one in its place."""
    file = sys.modules["torch.nn.modules.module"].__file__
    return getattr(getattr(function, "__code__", None), "co_filename", "") == file


def _collect(nn, plain, module, prefix, found):
    """False: somebody has a say in it."""
    kind, own = type(module), module.__dict__
    is_stock = _are_stock.get(kind)
    if is_stock is None:
        is_stock = all(getattr(kind, name) is getattr(nn.Module, name) for name in SAYS)
        _are_stock[kind] = is_stock
    if not is_stock or any(name in own for name in SAYS):
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
        child is None or _collect(nn, plain, child, f"{prefix}{name}.", found)
        for name, child in parts[2].items()
    )
