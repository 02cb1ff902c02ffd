"""Compare: what the trainer has and what a step has, by names, types and shapes."""

import dataclasses
import difflib
import logging
import reprlib

from libckpt import errors
from libckpt.core import _signals, _tensors

logger = logging.getLogger("libckpt")

LISTED = 5
OF_SCHEDULERS = "last_epoch"  # Each of torch's has it in its state.


@dataclasses.dataclass
class Differences:
    """By names: what only the trainer has, what only the step has, and as text what is of another
    type or shape there."""

    missing: list = dataclasses.field(default_factory=list)
    unexpected: list = dataclasses.field(default_factory=list)
    mismatched: dict = dataclasses.field(default_factory=dict)


def differences(here, there, is_stranger, is_comparable):
    """`here` and `there`: (type, shape) by name. Both functions get a name: whether nothing here
    would take what only the step has, and whether one name means one tensor."""
    return Differences(
        sorted(here.keys() - there.keys()),
        sorted(name for name in there.keys() - here.keys() if is_stranger(name)),
        {
            name: f"{text_of(form)} here and {text_of(there[name])} there"
            for name, form in here.items()
            if name in there and form != there[name] and is_comparable(name)
        },
    )


BY_RANK = (
    "A rank gets the items of one rank alone: what another one saved, as a stage of a pipeline, "
    "comes as arrays (libckpt.Array). "
)


def check(step, found, there, may_lack, of_several=False):
    """Raises InvalidArgument for what a strict restore refuses. `there`: the names in the step;
    `of_several`: several ranks saved it, or restore it."""
    if found.missing and not may_lack:
        by_rank = BY_RANK if of_several else ""
        raise errors.InvalidArgument(
            f"restore step {step}: {len(found.missing)} tensor(s) of this trainer are not in it: "
            f"{listed(found.missing)}. {_available(found.missing[0], there)}{by_rank}Has the model "
            "or a name changed? Say so with `renamed`, restore with the model that was saved, or "
            "with strict=False, which leaves them as they are"
        )
    for name, forms in found.mismatched.items():
        raise errors.InvalidArgument(
            f'restore step {step}: tensor "{name}" is {forms}. Has the model changed? With '
            "strict=False it stays as it is"
        )


def grouped(found):
    """The tensors that a restore which was not strict left out, by the words of its warning."""
    mismatched = [f'"{name}" is {forms}' for name, forms in found.mismatched.items()]
    all_of_them = {
        "of this trainer are not in the step, and stay as they are": found.missing,
        "of the step have another type or shape here, and are not taken": mismatched,
    }
    return {what: names for what, names in all_of_them.items() if names}


def scheduler_state(name, owner, state):
    """The state. Warns where it seems to be of another class of schedulers than the owner is, which
    takes it without a word. Another version may lack values of a class, or have more, but not both.
    """
    if not isinstance(state, dict) or OF_SCHEDULERS not in state:
        return state
    own = owner.state_dict()
    if not isinstance(own, dict) or OF_SCHEDULERS not in own:
        return state
    lacking = sorted(map(str, own.keys() - state.keys()))
    strange = sorted(map(str, state.keys() - own.keys()))
    if lacking and strange:
        logger.warning(
            'libckpt: restore: item "%s" is a %s, and seems to have been a scheduler of another '
            "class when it was saved: it was saved with %s and has %s here",
            name, type(owner).__name__, listed(strange), listed(lacking),
        )  # fmt: skip
    return state


def constants(name, here, there):
    """The places where a constant item differs from the value that should stand for it."""
    if isinstance(here, tuple) and isinstance(there, tuple) and len(here) == len(there):
        for i, (part, other) in enumerate(zip(here, there, strict=True)):
            yield from constants(f"{name}.{i}", part, other)
    elif not _tensors.is_tensor(here) and not _is_equal(here, there):
        yield f'"{name}" was saved as {reprlib.repr(there)} and is {reprlib.repr(here)} here'


def _is_equal(here, there):
    try:
        return here is there or bool(here == there) or bool(here != here and there != there)  # NaN
    except Exception as error:  # Anybody's __eq__; that of an array has many answers.
        _signals.raise_of_handler(error)
        return False


def _available(name, there):
    if not there:
        return "It has no tensor. "
    near = difflib.get_close_matches(name, there, LISTED, cutoff=0.5)
    return f"It has {listed(near or sorted(there), len(there))}. "


def listed(names, count=None):
    """The first of them; `count`: of how many."""
    count = len(names) if count is None else count
    names = names[:LISTED]
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(names) + more


def text_of(form):
    return f"{form[0]} {list(form[1])}"
