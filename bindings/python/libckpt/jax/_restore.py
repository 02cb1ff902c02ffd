"""Restore: the arrays of a step, made anew on the shardings that the trainer wants.

    1. the items say what the step has: of each array its cells, and which this rank captured
    2. as many processes as saved it:   each reads its own cells, then they go round
       another number:                  each asks for the cells that its devices need
    3. each device gets its box, cut out of the cells

Nothing of `like` is written: JAX's arrays never change.
"""

import dataclasses
import logging
from typing import Any

import jax
import numpy

from libckpt import errors
from libckpt.core import _resuming
from libckpt.jax import _boxes, _capture, _exchange, _leaves, _wanted

logger = logging.getLogger("libckpt")

NAMED = 3


@dataclasses.dataclass(eq=False)
class Restored:
    """A step, and the tree that was restored."""

    step: int
    tree: Any
    source: str  # "own_memory", "peer_memory" or "storage".
    source_name: str
    world_size: int  # The number of processes that saved it.
    # The newest step that training is known to have reached before: those after `step` are lost.
    newest_seen: int | None = None

    def __repr__(self):
        return f"Restored(step={self.step}, from {self.source_name})"


def restore(session, like, step, strict, source=None):
    try:
        return _restore(session, like, step, strict, source)
    except errors.NotFound:
        raise
    except Exception as error:
        session._restore_failure = error  # As if the session's own restore had failed.
        raise


def _restore(session, like, step, strict, source):
    found = session.restore(step=step, source=source)
    source = _resuming.source_again(source, found, session)
    step, failure, values = found.step, None, {}
    try:
        specs, own, plain = _capture.described(found.items)
        paths = _capture.paths_in(found.items)
        leaves, structure = _leaves.named(like, paths)
        _leaves.check_names(leaves, paths, specs.keys() | plain.keys())
        arrays, values = choose(leaves, specs, plain, strict)
    except Exception as error:
        failure = error
    session.agree("tree", failure)
    if found.world_size == session.world_size:
        cells = _of_own(session, step, source, arrays, specs, own)
    else:
        cells = _of_others(session, step, source, arrays, specs, own)
    try:
        fill(values, leaves, arrays, cells, plain, strict)
    except Exception as error:
        failure = error
    session.agree("arrays", failure)
    _warn_of_left(step, leaves, specs.keys() | plain.keys())
    tree = jax.tree_util.tree_unflatten(structure, [values[name] for name in leaves])
    return Restored(
        step, tree, found.source, found.source_name, found.world_size, found.newest_seen
    )


def fill(values, leaves, arrays, cells, plain, strict):
    """Adds what was restored to the values by name."""
    for wanted in arrays:
        values[wanted.name] = wanted.value({name: cells[name] for name in wanted.cells})
    for name in [name for name in leaves if name in plain]:
        try:
            values[name] = _wanted.placed(name, leaves[name], plain[name])
        except errors.InvalidArgument as error:
            if strict or isinstance(leaves[name], jax.ShapeDtypeStruct):
                raise
            logger.warning("libckpt: %s", error)
            values[name] = leaves[name]


def choose(leaves, specs, plain, strict, may_lack=False):
    """(arrays to restore, values by name of what stays as it is)."""
    arrays, kept = [], {}
    for name, leaf in leaves.items():
        if name in plain:
            continue
        try:
            if name not in specs:
                raise errors.InvalidArgument(
                    f'restore: "{name}" is not in the checkpoint, which has '
                    f"{_some(specs.keys() | plain.keys())}. Has the model or a name changed? With "
                    "strict=False it stays as it is"
                )
            _wanted.check(name, leaf, specs[name])
        except errors.InvalidArgument as error:
            is_let_go = may_lack and name not in specs
            if not is_let_go and (strict or isinstance(leaf, jax.ShapeDtypeStruct)):
                raise
            logger.warning("libckpt: %s", error)
            kept[name] = leaf
            continue
        arrays.append(_wanted.Wanted(name, leaf, specs[name]))
    return arrays, kept


def _of_own(session, step, source, arrays, specs, own):
    """By name, (box, content) of the cells: each process reads what it saved, and they go round."""
    boxes = _boxes_of(specs, own)
    cells, parts = {}, []
    for cell in own:
        spec, box = boxes[cell]
        content = _leaves.empty(_boxes.shape_of(box), _leaves.dtype_of(spec.dtype))
        parts.append(_capture.array_of(cell, box, spec.shape, content))
        cells[cell] = (box, content)
    session.restore({_capture.ITEM: {}}, step=step, arrays=parts, source=source)
    if session.world_size > 1:
        needed = {
            cell: (box, cells[cell][1] if cell in cells else wanted.room(box))
            for wanted in arrays
            for cell, (box, _) in wanted.cells.items()
        }
        here = {cell: _row(content) for cell, (_, content) in cells.items()}
        _exchange.exchange(session.ranks, here, {c: _row(made) for c, (_, made) in needed.items()})
        cells = needed
    return cells


def _of_others(session, step, source, arrays, specs, own):
    """The same, of another number of processes: each cell is found by its name."""
    cells, parts = {}, []
    for wanted in arrays:
        for cell, (_, box) in wanted.cells.items():
            content = wanted.room(box)
            parts.append(_capture.array_of(cell, box, wanted.spec.shape, content))
            cells[cell] = (box, content)
    # The shard with the items has other cells, too; nothing of them is wanted.
    for cell, (spec, box) in _boxes_of(specs, own).items():
        if cell not in cells:
            nothing = tuple((begin, begin) for begin, _ in box)
            content = _leaves.empty(_boxes.shape_of(nothing), _leaves.dtype_of(spec.dtype))
            parts.append(_capture.array_of(cell, nothing, spec.shape, content))
    session.restore({_capture.ITEM: {}}, step=step, arrays=parts, source=source)
    return cells


def _boxes_of(specs, own):
    """By name of the own cells: (spec of the array, box)."""
    wanted, found = set(own), {}
    for name, spec in specs.items():
        for box in _boxes.cells(spec.cuts, spec.shape):
            cell = _boxes.name_of(name, box, spec.cuts)
            if cell in wanted:
                found[cell] = (spec, box)
    lost = wanted - found.keys()
    if lost:
        raise errors.Corruption(f'restore: "{min(lost)}" was saved, and is a part of no array')
    return found


def _row(content):
    """The memory of an array as a row of bytes."""
    return content.reshape(-1).view(numpy.uint8)


def _warn_of_left(step, leaves, saved):
    left = saved - leaves.keys()
    if left:
        logger.warning(
            "libckpt: restore step %d: the checkpoint also has %s, which `like` does not: saves "
            "without make checkpoints without",
            step, _some(left),
        )  # fmt: skip


def _some(names):
    listed = ", ".join(f'"{name}"' for name in sorted(names)[:NAMED])
    return listed + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
