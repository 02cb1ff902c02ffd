"""Fill: gives the trainer's own objects, at any depth of containers, what was restored.

Modules, optimizers and whatever takes its state back are filled where they are, and so are
containers and plain objects: every holder of one sees what was saved.
"""

import collections
import contextlib
import enum
import logging
import random
import types

from libckpt import errors
from libckpt.core import _compare, _frameworks, _item_kinds, _rebuild, _signals, _tensors
from libckpt.rng import RNG

logger = logging.getLogger("libckpt")

# Nobody else's copy of them can be changed, so there is nothing to fill.
CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, type, enum.Enum,
    types.FunctionType, types.BuiltinFunctionType,
)  # fmt: skip


NOT_SAVED = "was not saved; with strict=False it stays as it is"
CURES = (
    "Say with `renamed` what has another name now; or restore without this item, which leaves it "
    "as it is, with strict=False where tensors were added or removed; or begin other training "
    "from the weights (initialize_from). start_fresh() begins without all that is stored"
)


def check(into, values, strict):
    """Raises what load() would, before anything is filled; `values` is the outline of the items."""
    owners = _item_kinds.owners_of(into)
    if strict:
        _check_names(into, values)
    for name, item in into.items():
        if name in values:
            _check(name, item, values[name], strict, owners)


def _check_names(into, values):
    """First of all: what does not fit under one name may only have had another one."""
    lacking = [name for name in into if name not in values]
    if not lacking:
        return
    left = [name for name in values if name not in into]
    text = f"restore: item {_quoted(lacking)} {NOT_SAVED}"
    if left:
        text += (f". The checkpoint has {_quoted(left)}, not asked for: if that is it, say "
                 f'renamed={{"{left[0]}": "{lacking[0]}"}}')  # fmt: skip
    raise errors.InvalidArgument(text)


def _quoted(names):
    return _compare.listed([f'"{name}"' for name in names])


def _check(name, item, value, strict, owners):
    if isinstance(item, _item_kinds.Member) or isinstance(value, _rebuild.Placeholder):
        return
    if any(each.check(name, item, value, strict) for each in owners):
        return
    if isinstance(item, RNG):
        with errors_named(name, item):
            item.check(value)
    elif isinstance(item, dict) and isinstance(value, dict):
        gone = [key for key, part in item.items() if key not in value and _has_owner(part)]
        if gone and strict:
            raise errors.InvalidArgument(f'restore: item "{name}.{gone[0]}" {NOT_SAVED}')
    for part_name, part, other in _common_parts(name, item, value):
        _check(part_name, part, other, strict, owners)


def _common_parts(name, here, there):
    """(name, part here, part there) of what two dictionaries, or two lists or tuples, both have."""
    keys = ()
    if isinstance(here, dict) and isinstance(there, dict):
        keys = [key for key in here if key in there]
    elif isinstance(here, (list, tuple)) and isinstance(there, (list, tuple)):
        keys = range(min(len(here), len(there)))
    return [(f"{name}.{key}", here[key], there[key]) for key in keys]


@contextlib.contextmanager
def errors_named(name, owner):
    """Loading a state may raise any exception of its owner's: this names the item."""
    try:
        yield
    except errors.CheckpointError:
        raise
    except Exception as error:
        _signals.raise_of_handler(error)
        raise errors.InvalidArgument(
            f'restore: item "{name}", a {type(owner).__name__}, does not take its state: {error}; '
            "it was saved by one of another kind, or with other groups or sizes, as by a model "
            f"that has changed since. {CURES}"
        ) from error


def load(into, values, strict, owners=None):
    """Fills the items of `into`, each from the value of its name."""
    owners = _item_kinds.owners_of(into) if owners is None else owners
    kept = []
    for name, item in into.items():
        if name not in values:
            if strict:
                raise errors.InvalidArgument(f'restore: item "{name}" {NOT_SAVED}')
            continue
        value = values[name]
        if isinstance(item, _item_kinds.Member):
            item = item.content
        for part in _states_in(name, item, value):
            logger.warning("libckpt: restore: item %s", part)
        if _tensors.is_tensor(item) and _tensors.is_tensor(value):
            _fill_tensor(name, item, value, strict)
            continue
        filled = fill(name, item, value, strict, owners)
        if _is_constant(item):
            kept += _compare.constants(name, item, filled)
        elif filled is not item:
            logger.warning(
                'libckpt: restore: item "%s", a %s, cannot be filled where it is: take it from '
                "Restored.items",
                name,
                type(item).__name__,
            )
    if kept:
        logger.warning(
            "libckpt: restore: %d plain value(s) of the items stay as they are, since nothing in "
            "them can be filled: %s; take the saved ones from Restored.items, or keep such values "
            "in a dictionary, which is filled",
            len(kept),
            "; ".join(kept[:5]),
        )


def _fill_tensor(name, item, value, strict):
    here, there = _tensors.stored_form(item), _tensors.stored_form(value)
    if here == there:
        _tensors.copy(value, item)
    elif strict:
        raise errors.InvalidArgument(
            f'restore: tensor "{name}" is {_form(here)} here and {_form(there)} there; with '
            "strict=False it stays as it is"
        )
    else:
        logger.warning(
            'libckpt: restore: tensor "%s" stays as it is: it is %s here and %s there',
            name, _form(here), _form(there),
        )  # fmt: skip


def _form(form):
    return f"{form[0]} {list(form[1])}"


def _states_in(name, item, value):
    """Warnings about the answers of state_dict() in plain data: their owners keep their own
    numbers, and see no tensor that is added."""
    if isinstance(item, dict) and isinstance(value, dict):
        if set(item) == {"state", "param_groups"}:
            yield (
                f'"{name}" is the state_dict() of an optimizer, which does not see that it is '
                "filled: give the optimizer itself, or call its load_state_dict"
            )
            return
        added = [key for key in value if key not in item and _tensors.is_tensor(value[key])]
        if added and hasattr(item, "_metadata"):
            yield (
                f'"{name}" is the state_dict() of a module, which has no {", ".join(added[:5])}: '
                "only the dictionary has them now"
            )
    for part_name, part, other in _common_parts(name, item, value):
        yield from _states_in(part_name, part, other)


def fill(name, item, value, strict, owners):
    """The replacement of `item`: the item itself, filled, or the value of a constant."""
    if isinstance(item, _item_kinds.Member):
        item.content = fill(name, item.content, value, strict, owners)
    elif any(each.fill(name, item, value, strict) for each in owners):
        pass
    elif _item_kinds.has_state(item) or _item_kinds.can_load(item):
        _fill_owner(name, item, value, strict)
    elif _tensors.is_tensor(item) and _tensors.is_tensor(value) and _tensors.is_trained(item):
        # With strict, those of other types or shapes were refused before.
        if _tensors.stored_form(item) == _tensors.stored_form(value):
            _tensors.copy(value, item)
    elif isinstance(item, dict) and isinstance(value, dict):
        _fill_dictionary(name, item, value, strict, owners)
    elif isinstance(item, list) and isinstance(value, list):
        item[:] = _filled_parts(name, item, value, strict, owners)
    elif type(item) is tuple and isinstance(value, tuple):
        return tuple(_filled_parts(name, item, value, strict, owners))
    elif _is_constant(item) or not _fill_object(item, value):
        return value
    return item


def _fill_dictionary(name, item, value, strict, owners):
    gone = [key for key, part in item.items() if key not in value and _has_owner(part)]
    if gone and strict:
        raise errors.InvalidArgument(f'restore: item "{name}.{gone[0]}" {NOT_SAVED}')
    filled = {
        key: fill(f"{name}.{key}", item[key], part, strict, owners) if key in item else part
        for key, part in value.items()
    }
    filled.update({key: item[key] for key in gone})
    item.clear()
    item.update(filled)


def _filled_parts(name, item, value, strict, owners):
    if strict and len(item) > len(value) and any(map(_has_owner, item[len(value) :])):
        raise errors.InvalidArgument(f'restore: item "{name}.{len(value)}" {NOT_SAVED}')
    return [
        fill(f"{name}.{i}", item[i], part, strict, owners) if i < len(item) else part
        for i, part in enumerate(value)
    ]


def _has_owner(value):
    """Whether it is, or holds, something that takes its state back."""
    return any(_item_kinds.parts_in([("", value)], _item_kinds.has_state))


def _fill_owner(name, owner, state, strict):
    kind = type(owner).__name__
    if not _item_kinds.can_load(owner):
        if strict:
            raise errors.InvalidArgument(
                f'restore: item "{name}", a {kind}, has state_dict and no load_state_dict: give it '
                "one, or restore without it and take its state from Restored.items"
            )
        return
    with errors_named(name, owner):
        owner.load_state_dict(_compare.scheduler_state(name, owner, state))


def _fill_object(item, value):
    """Whether the object, of no kind that libckpt knows of, is now as the value."""
    if item is value or type(item) is not type(value) or _tensors.is_tensor(item):
        return item is value
    if isinstance(item, (set, dict)):
        item.clear()
        item.update(value)
    elif isinstance(item, (list, bytearray)):
        item[:] = value
    elif isinstance(item, collections.deque):
        item.clear()
        item.extend(value)
    elif isinstance(item, random.Random):
        item.setstate(value.getstate())
    elif any(adapter.fill_object(item, value) for adapter in _frameworks.adapters()):
        pass
    elif _has_attributes_only(item):
        vars(item).clear()
        vars(item).update(vars(value))
    else:
        return False
    return True


def _is_constant(item):
    if isinstance(item, CONSTANTS):
        return True
    return any(adapter.is_constant(item) for adapter in _frameworks.adapters())


def _has_attributes_only(item):
    """Whether its attributes are all there is to it."""
    kind = type(item)
    is_frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    return (
        hasattr(item, "__dict__")
        and not is_frozen
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and not any(getattr(base, "__slots__", ()) for base in kind.__mro__)
    )
