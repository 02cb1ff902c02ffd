"""Restore: brings a step's tensors to where they belong, in place where that is possible."""

import json

from libckpt import errors
from libckpt.core import _arrays, _compare, _frameworks, _item_kinds, _other_ranks
from libckpt.core import _registration, _structure, _tensors, _ties, _unasked, _views
from libckpt.core._replicas import SHARES


class Targets:
    """Answers where each tensor of a step is to go; asked once for each copy that is tried.

    complete() alone looks for the missing parts of a share.
    """

    wants_tensors = True

    def __init__(
        self, into, flattened, arrays, strict, names, of_a_share=False,
        check=lambda structure: None,
    ):  # fmt: skip
        self.names = names  # They translate those in the checkpoint.
        self._structure, here, _ = flattened  # As text: the items of the tensors here.
        self._owners = getattr(here, "owners", {})  # By name, whose parts are in `here`.
        self._arrays, self._array_places = arrays.tensors(), arrays.places()
        self._parts = arrays.parts()  # Names of arrays that items hold.
        self._shared_here = _shared_names(here)
        self._shared = self._shared_here  # Names that several tensors want, here or there.
        of_modules, self._states = _places_of_owners(into, here)  # States may have less, or more.
        self._here = here.keys()
        # Items that take more than they have here: all but modules.
        self._open = {item for item in into if not _is_of_module(item, into[item], of_modules)}
        # Not a name of more than one slash, which is another one here: it is copied later.
        own = {n: here[n] for n, item in into.items() if n in here and _tensors.is_tensor(item)}
        nested = dict(_nested_in(into, here))
        trained = {n: tensor for n, tensor in nested.items() if _tensors.is_trained(tensor)}
        self._in_place = {**own, **trained, **of_modules}
        # In plain data: written in place, unless others have a part of their memory.
        self._nested = {n: tensor for n, tensor in nested.items() if n not in self._in_place}
        self._alike = _tensors.names_by_memory(here)
        self._ties = _ties.Ties(self._alike)
        self._check_outline = check
        self.structure = None  # That of the newest choice, if it had one.
        self._nodes = {}  # Its tensors by name.
        self._has_into, self._strict = bool(into), strict and bool(into)
        self.unasked = _unasked.Unasked(arrays, strict)
        self.of_a_share = of_a_share
        self.differences = _compare.Differences()
        self.leaves_arrays = False  # They come later, from the pieces of all ranks.
        self.placed = {}  # By name, the trainer's own tensors that were filled.
        self.loaded = {}  # By name, bytes that are to become tensors.
        self.members = {}  # By name of the member, its entries' bytes.
        self.tied = {}  # By name, the name whose bytes it has.

    def choose(self, step, stored, structure):
        self.structure = structure
        stored, of_others = _other_ranks.split(stored)
        if self.structure is not None:
            self._check_outline({k: v for k, v in self.structure.items() if k != SHARES})
        self._nodes = {node["t"]: node for node in _structure.tensor_nodes(self.structure)}
        _check_writable(step, self._in_place, {name for name, *_ in stored})
        for found in (self.placed, self.loaded, self.members, self.tied):
            found.clear()
        _arrays.check_parts(step, self._nodes, self._arrays)
        _other_ranks.check_whole(step, self._arrays, stored, of_others)
        away = self.unasked.begin(stored, of_others, [t for t in stored if self._is_of_array(t[0])])
        for shard in of_others.values():
            self.unasked.see(shard, [self.structure])
        away = set() if self.leaves_arrays else away
        of_others_arrays = _other_ranks.choose_arrays(step, away, of_others, self._array_target)
        # Of parts that nobody wants here only the names came, if another number of ranks saved.
        stored = [each for each in stored if each[4] is None or each[0] in self._arrays]
        self._shared = self._shared_here | _shared_names(name for name, *_ in stored)
        if self._strict:
            there = {
                name: _tensors.described_form(self._nodes[name])
                if name in self._nodes else (kind, tuple(shape))
                for name, kind, shape, *_ in stored
            }  # fmt: skip
            self.of_a_share = self.of_a_share or bool(of_others)
            self._compare(step, there, self.of_a_share)
        chosen = self._choose(stored) + of_others_arrays
        return chosen + _other_ranks.choose(of_others, self.structure, self._choose)

    @property
    def has_wishes(self):
        return self._has_into or bool(self._arrays)

    def parts_to_leave_out(self):
        """Names held by items that the step lacks and a restore can do without."""
        needed = self._in_place if self._strict else ()
        return {name for name in self._parts if name not in self._nodes and name not in needed}

    def choose_more(self, names):
        """A choice of these names of a further shard, besides what was chosen."""

        def choose(_, stored, structure):
            self.unasked.see(stored, [self.structure, structure])
            return self._choose([tensor for tensor in stored if tensor[0] in names])

        return choose

    def complete(self, step, nodes, sources):
        """Makes places for what no shard here has; `nodes` of the structure by name are all."""
        self._nodes = nodes
        forms = {name: _tensors.described_form(node) for name, node in nodes.items()}
        self._shared = self._shared | _shared_names(nodes)
        if self._has_into:
            self._compare(step, forms)
        for name, form in forms.items():
            if not self.has(name):
                stored = {**nodes[name], "shape": _tensors.stored_shape(nodes[name])}
                is_taken = self._ties.is_taken(name, self.placed, sources)
                own = None if is_taken else self._in_place_for(name)
                self._target(name, *_tensors.described_form(stored), own)

    def flat_bytes(self, name):
        """The tensor's place as a row of bytes."""
        source = self.tied.get(name, name)
        found = self.placed.get(source)
        place = self.loaded[source] if found is None else _tensors.as_stored(found)
        return _frameworks.rank_adapter().flat_bytes(place)

    def has(self, name):
        """Whether it is there already, or on its way."""
        return any(name in found for found in (self.placed, self.loaded, self.tied))

    def _choose(self, stored):
        chosen = []
        self.tied.update({name: alias for name, _, _, alias, _ in stored if alias})
        names = {name for name, *_ in stored}
        sources = dict.fromkeys(names, "this")
        for name, type_name, shape, alias, _ in stored:
            if self._is_of_array(name):
                if name in self._arrays and not self.leaves_arrays:
                    chosen.append(self._array_target(name))
                if name in self._arrays and name in self._nodes:  # A part that an item holds.
                    self.placed[name] = self._arrays[name]
            elif not alias and name != _registration.ROOM:
                own = self._in_place_for(name)
                if self._ties.is_taken(name, self.placed, sources):
                    own = None
                elif own is None:
                    own = self._nested[name] if self._is_free(name, names) else None
                if own is None:
                    own = self._states.get(name)
                chosen.append(self._target(name, type_name, shape, own))
        return chosen

    def _is_of_array(self, name):
        """Whether it belongs to no item."""
        is_known = self.structure is not None and name not in self._nodes and "//" not in name
        return name in self._arrays or (is_known and name != _registration.ROOM)

    def _array_target(self, name):
        view = _views.view_of(name, self._arrays[name])
        place = self._array_places[name]
        return (name, view.address, view.type, view.shape, view.gpu, False, place)

    def _is_free(self, name, stored):
        """Whether nothing but what is to be the same there has the memory of the nested tensor."""
        if name not in self._nested or _wanted(name) in self._shared:
            return False
        alike = self._alike[_tensors.memory_of(self._nested[name])]
        source = self.tied.get(name, name)
        return all(other in stored and self.tied.get(other, other) == source for other in alike)

    def _in_place_for(self, name):
        """None, too, where only the structure shows which tensor it is: it is copied later."""
        return None if _wanted(name) in self._shared else self._in_place.get(name)

    def _compare(self, step, there, of_a_share=False):
        # Arrays in plain data may grow: whoever reads them takes them from there.
        nested = {n: t for n, t in self._nested.items() if not _tensors.kind_of(t).may_grow}
        wanted = {**self._in_place, **nested}
        here = {name: _tensors.stored_form(tensor) for name, tensor in wanted.items()}
        # An older save has the names of wrappers, which are left out since.
        there = {_frameworks.plain_name(name): form for name, form in there.items()} | there
        items = _structure.items_by_name(self.structure or {})
        self.differences = _compare.differences(
            here, there,
            lambda name: name not in self._here and items.get(name) not in self._open,
            # Arrays come in any parts that the ranks had then.
            lambda name: name not in self._arrays and _wanted(name) not in self._shared,
        )  # fmt: skip
        if self._strict:
            _compare.check(step, self.differences, list(there), of_a_share, self.of_a_share)

    def _target(self, name, type_name, shape, tensor):
        order = tuple(self._nodes.get(name, {}).get("order", ()))
        view = _views.view_in_place(tensor, type_name, shape, order)
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
        """By name, the tensors that the structure asks for: those here, where it can be."""
        self._check_items(structure)
        found = {}
        nodes = list(_structure.tensor_nodes(structure))
        names = {node["t"] for node in nodes}
        for node in nodes:
            name = node["t"]
            source = self.tied.get(name, name)
            if name in self._owners and name in self.placed:
                found[name] = self._owners[name]
            elif source in self.placed:
                there = self.placed[source]
                if source != name:  # The same bytes, perhaps in another order.
                    there = _tensors.as_described(_tensors.as_stored(there), node)
                found[name] = self._filled(name, there, names)
            elif source in self.loaded:
                made = _tensors.dress(self.loaded[source], node)
                if (own := self._in_place_for(name)) is not None:
                    self._ties.check(name, own, made, self.placed)
                found[name] = self._filled(name, made, names)
        return found

    def _filled(self, name, value, names):
        """The nested tensor of that name, if it may have the value: one that is not contiguous, or
        that is a tensor of its own here, and was tied there."""
        own = self._nested.get(name)
        if own is None or own is value or _tensors.is_same(own, value):
            return value if own is None else own
        fits = _tensors.stored_form(own) == _tensors.stored_form(value)
        if not fits or _tensors.why_not_writable(own) or not self._is_free(name, names):
            return value
        _tensors.copy(value, own)
        return own

    def replaced(self, found):
        """The names of nested tensors that others stand for in `found`, what tensors() answered."""
        return [name for name, own in self._nested.items() if found.get(name, own) is not own]

    def _check_items(self, structure):
        """An item "a.b" has the name of the part b of an item "a"."""
        if not any("." in name for name in structure) and "." not in self._structure:
            return
        here = _structure.items_by_name(json.loads(self._structure))
        there = _structure.items_by_name(structure)
        for name in [*self.placed, *self._nested]:
            if name in here and name in there and here[name] != there[name]:
                raise errors.InvalidArgument(
                    f'restore: tensor "{name}" was saved as a part of item "{there[name]}" and is '
                    f'one of item "{here[name]}" here, which was overwritten: give the items the '
                    "names that they were saved under, and restore again"
                )


def _wanted(name):
    """The name without what items.Flattener puts behind one that another tensor has."""
    return name.rstrip("'")


def _shared_names(names):
    seen, shared = set(), set()
    for name in map(_wanted, names):
        (shared if name in seen else seen).add(name)
    return shared


def _is_of_module(name, item, of_modules):
    return _item_kinds.has_state(item) and any(each.startswith(f"{name}.") for each in of_modules)


def _nested_in(into, here):
    """(name, tensor) of the tensors that containers of plain data hold, at any depth."""
    containers = [pair for pair in into.items() if not _tensors.is_tensor(pair[1])]
    for name, tensor in _item_kinds.parts_in(containers, _tensors.is_tensor):
        # Not what has another name here, since two wanted one.
        if here.get(name) is tensor and f"{name}'" not in here:
            yield name, tensor


def _places_of_owners(into, here):
    """By name, the tensors of modules, and the state of optimizers that may be filled."""
    modules, states = {}, {}
    for owners in _item_kinds.owners_of(into):
        more_modules, more_states = owners.in_place(here)
        modules |= more_modules
        states |= more_states
    return modules, states


def _check_writable(step, tensors, stored):
    for name, tensor in tensors.items():
        problem = _tensors.why_not_writable(tensor) if name in stored else ""
        if problem:
            raise errors.InvalidArgument(
                f'restore step {step}: tensor "{name}" cannot be filled: {problem}'
            )
