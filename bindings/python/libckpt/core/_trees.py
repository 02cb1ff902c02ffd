"""Trees: the containers of one save, remembered for the next.

An optimizer's state is ten thousand dictionaries, and from one save to the next mostly a learning
rate changes. So what a save made of a container is kept, with all that is in it, and the next save
has it compared in one call. A container with other objects than tensors and plain data is walked
through each time, and the containers in it are remembered instead.
"""

from libckpt import _native
from libckpt.core import _frameworks, _views

REBUILT_MAX = 8  # How often a container may be another one: a list that grows is at each save.


class _Known:
    def __init__(self, tree, names, rebuilt):
        self.tree = tree  # None: it is not worth the while.
        self.names = names  # The names of its tensors.
        self.rebuilt = rebuilt


class Trees:
    """The trees of one save, by name; `before` are those of the save before, or None."""

    def __init__(self, before=None):
        self._before = before._trees if before else {}
        self._trees = {}

    def find(self, name, value):
        """(names, tensors, text) of a container that is as it was but for plain values."""
        known = self._before.get(name)
        found = known.tree.find(value) if known is not None and known.tree is not None else None
        if found is None:
            return None
        self._trees[name] = known
        return (known.names, *found)

    def is_wanted(self, name):
        """Whether a container that was not found shall be remembered as one. If not, those in it
        may be."""
        known = self._before.get(name)
        if known is None or (known.tree is not None and known.rebuilt < REBUILT_MAX):
            return True
        self._trees[name] = _Known(None, (), known.rebuilt)
        return False

    def add(self, name, value, names, text, text_of):
        """Adds what was made of a wanted container, part by part; `text_of` is for plain values."""
        known = self._before.get(name)
        rebuilt = 0 if known is None else known.rebuilt + 1
        tree, exchange = None, _frameworks.first_answer(lambda adapter: adapter.exchange())
        if exchange is not None:
            _, tensor_type = exchange
            tree = _native.Tree(_views.exchange_api(), tensor_type, text_of, value, text)
        is_known = tree is not None and tree.is_known()
        self._trees[name] = _Known(tree if is_known else None, names, rebuilt)
