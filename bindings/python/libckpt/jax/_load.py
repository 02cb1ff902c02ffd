"""Load: arrays of a checkpoint that lies somewhere, of whatever job and mesh."""

import jax

from libckpt import errors
from libckpt.core import _rebuild, _views
from libckpt.core.files import _reader
from libckpt.jax import _capture, _leaves, _restore


def load(path, like, strict, prefix="", may_lack=False):
    """The tree. `prefix`: before the names of its leaves, as "params.". may_lack: leaves that the
    checkpoint lacks stay as they are."""
    with _reader.opened() as read:
        found = {}

        def keep_items(_, items):
            found.update(items or {})
            return []  # No tensor yet.

        saved_by = read(path, 0, keep_items)["world_size"]
        (specs, _, plain), paths = _described(found)
        specs, plain = _below(prefix, specs), _below(prefix, plain)
        depth = prefix.count(".")
        paths = {name: words[depth:] for name, words in _below(prefix, paths).items()}
        leaves, structure = _leaves.named(like, paths)
        _leaves.check_names(leaves, paths, specs.keys() | plain.keys())
        arrays, values = _restore.choose(leaves, specs, plain, strict, may_lack)
        cells = {}
        for wanted in arrays:
            for cell, (box, _) in wanted.cells.items():
                cells[prefix + cell] = (box, wanted.room(box), wanted.spec)
        missing = dict(cells)
        for rank in range(saved_by):
            if missing:
                read(path, rank, lambda stored, _: _targets(stored, missing))
    if missing:
        raise errors.Corruption(f'load {path}: no file of it has "{min(missing)}"')
    found = {name.removeprefix(prefix): part[:2] for name, part in cells.items()}
    _restore.fill(values, leaves, arrays, found, plain, strict)
    return jax.tree_util.tree_unflatten(structure, [values[name] for name in leaves])


def _described(structure):
    """As _capture.described, of the structure as it is stored, where {"d": ...} is a dictionary.
    Arrays of numpy in the tree come by the session only."""
    node = structure.get(_capture.ITEM)
    if node is None:
        return _capture.described({}), {}
    leaves = node["d"].pop("leaves")["d"]
    texts = _rebuild.outline({_capture.ITEM: node})[_capture.ITEM]
    outline = {name: _rebuild.outline({name: leaf})[name] for name, leaf in leaves.items()}
    plain = {n: v for n, v in outline.items() if not isinstance(v, _rebuild.Placeholder)}
    found = {_capture.ITEM: {**texts, "leaves": plain}}
    return _capture.described(found), _capture.paths_in(found)


def _below(prefix, named):
    return {n.removeprefix(prefix): each for n, each in named.items() if n.startswith(prefix)}


def _targets(stored, missing):
    """The wanted tensors of one shard, with their places."""
    targets = []
    for name, *_ in stored:
        if name in missing:
            box, content, spec = missing.pop(name)
            array = _capture.array_of(name, box, spec.shape, content)
            view = _views.view_of(name, array.buffer)
            place = (name, view.address, view.type, view.shape, view.gpu, False)
            targets.append((*place, array.place()))
    return targets


