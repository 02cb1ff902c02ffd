"""Module fill: gives a module what was restored; most of it is there already."""

import torch

from libckpt import errors
from libckpt.adapters.torch import _modules
from libckpt.core import _tensors


def fill(name, module, value, strict):
    if not isinstance(value, dict):
        if strict:
            raise errors.InvalidArgument(
                f'restore: item "{name}" is a module here, and was saved as a '
                f"{type(value).__name__}; with strict=False it stays as it is"
            )
        return
    own = module.state_dict()
    plain = _modules.plain_names(module, own)
    state = {plain[key]: part for key, part in own.items()}
    value = _without_wrappers(value, state)
    # Memory is not copied onto itself.
    rest = value
    if not _has_loading_code(module):
        rest = {
            key: part for key, part in value.items() if not _tensors.is_same(part, state.get(key))
        }
    if strict:
        unknown = [key for key in value if key not in state]
        if unknown:
            raise errors.InvalidArgument(
                f'restore: module "{name}" has no {", ".join(unknown[:5])}; '
                "with strict=False that is left out"
            )
    else:
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
    """By the names of the state: what was saved before those of wrappers were left out has them."""
    found = {}
    for key, part in value.items():
        other = key if key in state else _modules.without_wrappers(key)
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
