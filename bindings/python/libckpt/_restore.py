"""Restore: brings a step's tensors to where they belong, in place where that is possible."""

from libckpt import _digest, _registration, _tensors, _views, errors, items as _items


class Restored:
    """What a restore brought: the step, its source, and the items that were made anew."""

    def __init__(self, answer, values):
        self.step = answer["step"]
        self.timeline = answer["timeline"]
        self.source = answer["source"]  # "own_memory", "peer_memory" or "storage".
        self.source_name = answer["source_name"]
        self.bytes = answer["bytes"]
        self.seconds = answer["seconds"]
        self.world_size = answer["world_size"]  # Of those who saved it.
        self.items = values

    def __repr__(self):
        return f"Restored(step={self.step}, from {self.source_name})"


class Targets:
    """Answers where each tensor of a step is to go; asked once for each copy that is tried.

    Of a share, what is not there is looked for in complete() only.
    """

    def __init__(self, into, here, strict, of_a_share=False):
        self._in_place = _writable(into, here)
        self._strict = strict and bool(into)
        self.of_a_share = of_a_share
        self.placed = {}  # By name, the trainer's own tensors that were filled.
        self.loaded = {}  # By name, bytes that are to become tensors.
        self.members = {}  # By name of the member, its entries' bytes.
        self.tied = {}  # By name, the name whose bytes it has.

    def choose(self, step, stored):
        for found in (self.placed, self.loaded, self.members, self.tied):
            found.clear()
        if self._strict:
            there = {name: (kind, tuple(shape)) for name, kind, shape, _ in stored}
            _compare(step, there, self._in_place, self.of_a_share)
        return self._choose(stored)

    def choose_more(self, names):
        """A choice of these names of a further shard, besides what was chosen."""

        def choose(_, stored):
            return self._choose([tensor for tensor in stored if tensor[0] in names])

        return choose

    def complete(self, step, nodes):
        """Makes places for what no shard here has; `nodes` of the structure by name are all."""
        forms = {name: _tensors.described_form(node) for name, node in nodes.items()}
        if self._strict:
            _compare(step, forms, self._in_place)
        for name, form in forms.items():
            if not self._has(name):
                self._target(name, *form)

    def flat_bytes(self, name):
        """The tensor's place as a row of bytes."""
        source = self.tied.get(name, name)
        found = self.placed.get(source)
        return _digest.flat_bytes(self.loaded[source] if found is None else found)

    def _has(self, name):
        return any(name in found for found in (self.placed, self.loaded, self.tied))

    def _choose(self, stored):
        chosen = []
        for name, type_name, shape, alias in stored:
            if alias:
                self.tied[name] = alias
            elif name != _registration.ROOM:
                chosen.append(self._target(name, type_name, shape))
        return chosen

    def _target(self, name, type_name, shape):
        tensor = self._in_place.get(name)
        view = _view_in_place(tensor, type_name, shape)
        if view is not None:
            self.placed[name] = tensor
            return (name, view.address, view.type, view.shape, view.gpu, False)
        content = _tensors.host_bytes(type_name, shape)
        member, separator, entry = name.partition("//")
        if separator:
            self.members.setdefault(member, {})[entry] = content
        else:
            self.loaded[name] = content
        address = content.ctypes.data if content.nbytes else 0
        return (name, address, type_name, shape, -1, False)

    def tensors(self, structure):
        """By name, the tensors that the structure asks for."""
        found = {}
        for node in tensor_nodes(structure):
            name = node["t"]
            source = self.tied.get(name, name)
            if source in self.placed:
                found[name] = self.placed[source]
            elif source in self.loaded:
                found[name] = _tensors.dress(self.loaded[source], node)
        return found


def tensor_nodes(node):
    if isinstance(node, list):
        for part in node:
            yield from tensor_nodes(part)
    elif isinstance(node, dict):
        if isinstance(node.get("t"), str):
            yield node
        else:
            yield from tensor_nodes(list(node.values()))


def _writable(into, here):
    """Of the tensors by name, those that a restore may write where they are."""
    # A name of more than one slash is another one here: what has it is copied to its place later.
    tensors = [name for name, item in into.items() if _tensors.is_tensor(item) and name in here]
    in_place = {name: here[name] for name in tensors}
    for module in _modules_in(into):
        prefix = f"{module}."
        in_place.update({name: t for name, t in here.items() if name.startswith(prefix)})
    return in_place


def _modules_in(items):
    """The names of all modules, at any depth of containers."""
    for name, item in items.items():
        if _items.is_module(item):
            yield name
        elif isinstance(item, dict):
            yield from _modules_in({f"{name}.{key}": part for key, part in item.items()})
        elif isinstance(item, (list, tuple)):
            yield from _modules_in({f"{name}.{i}": part for i, part in enumerate(item)})


def _view_in_place(tensor, type_name, shape):
    if tensor is None or not _tensors.is_writable(tensor):
        return None
    view = _views.view_of("", tensor)
    return view if (view.type, tuple(view.shape)) == (type_name, tuple(shape)) else None


def _compare(step, there, in_place, of_a_share=False):
    missing = sorted(set(in_place) - set(there))
    if missing and not of_a_share:
        raise errors.InvalidArgument(
            f"restore step {step}: {len(missing)} tensor(s) of this trainer are not in it: "
            f"{', '.join(missing[:5])}; with strict=False they stay as they are"
        )
    for name, tensor in in_place.items():
        if name not in there:
            continue
        type_name, shape = _tensors.stored_form(tensor)
        if (type_name, shape) != there[name]:
            raise errors.InvalidArgument(
                f'restore step {step}: tensor "{name}" is {type_name} {list(shape)} here and '
                f"{there[name][0]} {list(there[name][1])} there"
            )
