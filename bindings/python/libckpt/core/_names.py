"""Names: what was saved under other names than the trainer has today.

A rule says what a name of the checkpoint is here, or the beginning of names up to a dot, or up to
the bracket of a part's place. The longest rule that fits counts. State of optimizers follows the
parameter that it belongs to. A part whose name leaves its item becomes a part of the item of that
name, or an item of its own.
"""

from libckpt import errors
from libckpt.core import _other_ranks, _structure
from libckpt.core._replicas import SHARES


class Names:
    """`items`: the names of the items here."""

    def __init__(self, renamed=None, items=()):
        self._items = list(items)
        rules = _checked({} if renamed is None else renamed)
        self._here_of = sorted(rules.items(), key=lambda rule: -len(rule[0]))
        self._there_of = sorted(((here, there) for there, here in rules.items()),
                                key=lambda rule: -len(rule[0]))  # fmt: skip
        self._here = {}  # By name there, of the tensors in the newest structure.
        self._there = {}  # By name here, of the tensors that were offered last.

    def __bool__(self):
        return bool(self._here_of)

    def here(self, name):
        """The name here of what was saved under that name."""
        return _replaced(self._here_of, name)

    def there(self, name):
        """The name under which an array of that name was saved."""
        saved = _replaced(self._there_of, name)
        if self.here(saved) != name:
            raise errors.InvalidArgument(
                f'restore: array "{name}" has no name in the checkpoint: by `renamed`, "{saved}" '
                f'there is "{self.here(saved)}" here'
            )
        return saved

    def arrays(self, arrays):
        """The arrays under the names that they have there."""
        return arrays.renamed(self.there) if self else arrays

    def choice(self, choose):
        """`choose`, which knows the names here, for the library, which knows those there; and with
        the structure as it is read."""

        def choose_of(step, stored, structure):
            structure = _structure.parsed(structure)
            if not self:
                return choose(step, stored, structure)
            if structure is not None:
                structure = self._structure(structure)
            self._there.clear()
            stored = [self._offered(*tensor) for tensor in stored]
            return [(self._there[name], *place) for name, *place in choose(step, stored, structure)]

        return choose_of

    def _offered(self, name, type_name, shape, alias, whole):
        here = self._of_tensor(name)
        if self._there.setdefault(here, name) != name:
            raise _two_of_one_name(self._there[here], name, here)
        if whole is not None:
            whole = (self._of_tensor(whole[0]), *whole[1:])
        return here, type_name, shape, self._of_tensor(alias) if alias else alias, whole

    def _of_tensor(self, name):
        prefix, name = _other_ranks.apart(name)
        member, separator, entry = name.partition("//")
        found = self._here.get(name)
        return prefix + (self.here(member) + separator + entry if found is None else found)

    def _structure(self, structure):
        shares = structure.pop(SHARES, None)
        walk = _Walk(self.here, {*self._items, *map(self.here, structure)})
        found = walk.of_items(structure, self._items)
        self._here = walk.names
        if shares is not None:
            found[SHARES] = {self._of_tensor(name): owner for name, owner in shares.items()}
        return found


class _Walk:
    """Goes through a structure, and makes it again with the names here; see items.Flattener."""

    def __init__(self, here_of, items):
        self._here_of = here_of
        self._items = sorted(items, key=len, reverse=True)
        self._moved = []  # (Name here, node) of parts that left their items.
        self.names = {}  # By name there, the name here of each tensor.

    def of_items(self, structure, kept):
        found = {}
        for name, node in structure.items():
            here, count = self._here_of(name), len(self._moved)
            node = self._node(node, name, here)
            is_empty = count < len(self._moved) and not _parts(node)
            if not is_empty or here in kept:
                _add(found, here, node)
        for here, node in self._moved:
            self._add_part(found, here, node)
        if len(set(self.names.values())) < len(self.names):
            first = {}
            for there, here in self.names.items():
                if first.setdefault(here, there) != there:
                    raise _two_of_one_name(first[here], there, here)
        return found

    def _add_part(self, found, here, node):
        item = next((item for item in self._items if f"{here}.".startswith(f"{item}.")), here)
        if item == here:
            return _add(found, here, node)
        parts = _parts(found.setdefault(item, {"s": {"d": {}}}))
        if parts is None:
            raise errors.InvalidArgument(
                f'restore: "{here}" would be a part of item "{item}", which was saved as a value '
                "that has no parts: give `renamed` another name for it"
            )
        return _add(parts, here.removeprefix(f"{item}."), node)

    def _node(self, node, there, here, by_rules=True):
        (kind, value), *_ = node.items()
        if kind == "t":
            return {**node, "t": self._tensor(value, there, here)}
        if kind == "a":
            return {"a": here}
        if kind in ("n", "s", "o"):
            return {kind: self._node(value, there, here, by_rules)}
        if kind in ("e", "k"):  # A factory, or the name of a kind, stands before the parts.
            return {kind: [value[0], self._node(value[1], there, here, by_rules)]}
        if kind == "g":
            return {"g": [value[0], {"d": self._optimizer(value[1]["d"], there, here)}]}
        if kind == "d":
            return {"d": self._dictionary(value, there, here, by_rules)}
        if kind in ("l", "u"):
            return {kind: [self._node(part, f"{there}.{i}", f"{here}.{i}", by_rules)
                           for i, part in enumerate(value)]}  # fmt: skip
        if kind == "m":  # Its keys are no texts, which no rule names.
            return {"m": [[key, self._node(part, there, here, False)] for key, part in value]}
        return node

    def _tensor(self, name, there, here):
        found = here + name[len(there) :] if name.startswith(there) else self._here_of(name)
        self.names[name] = found
        return found

    def _dictionary(self, parts, there, here, by_rules):
        found = {}
        for key, part in parts.items():
            path = f"{there}.{key}"
            name = self._here_of(path) if by_rules else f"{here}.{key}"
            node = self._node(part, path, name, by_rules)
            if name.startswith(f"{here}."):
                _add(found, name.removeprefix(f"{here}."), node)
            else:
                self._moved.append((name, node))
        return found

    def _optimizer(self, state, there, here):
        """The names of parameters are keys of its state, and lie in its groups."""
        found = self._dictionary(state, there, here, False)
        found["state"] = {"d": {
            self._here_of(name): self._node(
                node, f"{there}.state.{name}", f"{here}.state.{self._here_of(name)}", False
            )
            for name, node in state["state"]["d"].items()
        }}  # fmt: skip
        for group in found["param_groups"]["l"]:
            names = group["d"]["params"]["l"]
            names[:] = [{"v": self._here_of(name["v"])} for name in names]
        return found


def _parts(node):
    """The parts by name of a dictionary, or of an owner's state; None: it is none."""
    while not {"s", "o"}.isdisjoint(node):
        (node,) = node.values()
    return node.get("d")


def _add(found, name, node):
    if name in found:
        raise errors.InvalidArgument(
            f'restore: by `renamed`, two parts of the checkpoint are "{name}" here'
        )
    found[name] = node


def _two_of_one_name(one, other, here):
    return errors.InvalidArgument(
        f'restore: by `renamed`, "{one}" and "{other}" there are both "{here}" here'
    )


def _replaced(rules, name):
    for before, after in rules:
        if name == before or name.startswith((f"{before}.", f"{before}[")):
            return after + name[len(before) :]
    return name


def _checked(renamed):
    is_text = all(isinstance(word, str) and word.strip(".") for rule in renamed.items()
                  for word in rule) if isinstance(renamed, dict) else False  # fmt: skip
    if not is_text:
        raise errors.InvalidArgument(
            'restore: renamed: a dictionary from names in the checkpoint to names here is wanted, '
            f'as {{"model.encoder": "model.backbone"}}, and {renamed!r} was given'
        )
    rules = {there.rstrip("."): here.rstrip(".") for there, here in renamed.items()}
    if len(set(rules.values())) < len(renamed):
        raise errors.InvalidArgument("restore: renamed: two names would be the same here")
    return rules
