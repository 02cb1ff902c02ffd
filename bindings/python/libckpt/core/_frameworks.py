"""Frameworks: the core asks an adapter for all that it must know of a framework's objects.

An adapter is registered by the name of its framework's module. It is imported once the program has
imported that module, or when saved data needs it. So no framework is imported by the core.
"""

import importlib
import sys

from libckpt import errors

_registered = {}  # By name of the framework's module, the name of the adapter's.
_waiting = {}  # Those of them that are not imported yet.
_adapters = {}  # Those that are, by name of the framework.


class Adapter:
    """The core's questions. A framework that has no such thing leaves the answer as it is here.

    `tensors` is its _tensors.Kind. `Guard(registration)` follows optimizers: see the one of torch.
    """

    tensors = None
    Guard = None
    Digests = None  # Compares tensors, by name, between ranks.

    def owners(self, items, for_capture):
        """Handles the items that give and take back a state in a way of their own; see Owners."""
        return Owners()

    def parts_of(self, value):
        """(name of the kind, plain parts) of plain data; None: this framework has no such kind.
        The name begins with the framework's name and a dot."""
        return None

    def make(self, name, parts):
        """The value again. Raises KeyError for a kind that is unknown here."""
        raise KeyError(name)

    def is_constant(self, item):
        """Whether the item cannot change, so that there is nothing to fill."""
        return False

    def fill_object(self, item, value):
        """Whether the item is of a kind of this framework, and is now as the value."""
        return False

    def optimizer_of(self, given):
        """The optimizer whose step can be guarded; None: this framework has no such optimizer."""
        return None

    def watch_steps(self, call):
        """Calls `call()` after each step of any optimizer; returns what ends that, or None."""
        return None

    def state_bytes(self, items, guarded):
        """The bytes that the optimizers among the items, and the guarded ones, will need for their
        state once each has made a step. `guarded` are weak references."""
        return 0

    def by_numbers(self, state, away):
        """The state of an optimizer as the framework has it, of one by names of parameters."""
        raise NotImplementedError

    def plain_name(self, name):
        """A tensor's name as it would be saved today, of one that an older version saved."""
        return name

    def exchange(self):
        """(the capsule that describes tensors without objects of Python, their type), or None."""
        return None

    def current_streams(self, gpus):
        """The stream of each GPU that work is queued on now."""
        return []

    def is_recording_graph(self):
        """Whether what is queued now would go into a graph instead of being run."""
        return False

    def standing(self):
        """(rank, number of ranks) as the framework knows them; None: it does not."""
        return None

    def group(self, world_size):
        """The _ranks.Group through which the ranks of the job can talk; None: there is none."""
        return None

    def flat_bytes(self, tensor):
        """The tensor as a row of bytes that a _ranks.Group can send; the memory is shared."""
        raise NotImplementedError

    def load_archive(self, name, entries, allow_pickle):
        """The object that a member of a checkpoint holds."""
        raise NotImplementedError

    def rng_state(self):
        """The state of the framework's random generators, by names of its own."""
        return {}

    def seed(self, seed):
        pass

    def check_rng(self, state):
        """Raises ValueError for a state that load_rng cannot take."""

    def load_rng(self, state):
        pass


class Owners:
    """The items of one call that an adapter handles itself. Each method says whether it did."""

    def flatten(self, flattener, name, owner):
        """The structure of the owner, whose tensors the flattener got; None: not handled."""
        return None

    def replicas(self, tensors):
        """By name of the tensors that are declared to be the same on all ranks, what each is."""
        return {}

    def make_state(self):
        """Before a restore, makes what only a first step would make, where a restore must find it.
        Returns what undoes that."""
        return []

    def check(self, name, owner, value, strict):
        """Raises InvalidArgument for a value that fill() cannot give to the owner."""
        return False

    def fill(self, name, owner, value, strict):
        return False

    def in_place(self, tensors):
        """Divides the tensors by name: (those that a restore must fill where they are, those that
        it may)."""
        return {}, {}


def register(framework, adapter):
    """Both are names of modules. The adapter's module has a constant ADAPTER."""
    _registered[framework] = _waiting[framework] = adapter


def adapters():
    """Those of the frameworks that the program has imported."""
    if _waiting:
        for framework in [name for name in list(_waiting) if name in sys.modules]:
            adapter_of(framework)
    return tuple(_adapters.values())  # Another thread may be the one that imports the next.


def adapter_of(framework):
    """The adapter of that framework, which is imported now. Raises KeyError without one."""
    adapter = _adapters.get(framework)
    if adapter is None:
        adapter = importlib.import_module(_registered[framework]).ADAPTER
        _adapters[framework] = adapter
        _waiting.pop(framework, None)
    return adapter


def names():
    """The names of all registered frameworks."""
    return list(_registered)


def first_answer(ask):
    """The first answer of an adapter that is not None."""
    answers = map(ask, adapters())
    return next((answer for answer in answers if answer is not None), None)


def guardable(given):
    """The optimizer whose steps can be guarded. Raises InvalidArgument for other objects."""
    optimizer = first_answer(lambda adapter: adapter.optimizer_of(given))
    if optimizer is None:
        raise errors.InvalidArgument(
            f"guard: {type(given).__name__} was given: an optimizer of torch is wanted, which has "
            "register_step_pre_hook"
        )
    return optimizer


def optimizer_adapter(given):
    """The adapter that can guard the optimizer; None: none can."""
    return first_answer(lambda adapter: None if adapter.optimizer_of(given) is None else adapter)


def plain_name(name):
    """A tensor's name as it would be saved today, of one that an older version saved."""
    for adapter in adapters():
        name = adapter.plain_name(name)
    return name


def current_streams(gpus):
    """The stream of each GPU that work is queued on now."""
    if not gpus:
        return []
    return [stream for adapter in adapters() for stream in adapter.current_streams(gpus)]


def is_recording_graph():
    return any(adapter.is_recording_graph() for adapter in adapters())


def rank_adapter():
    """The adapter whose framework compares and sends tensors between ranks."""
    return first_answer(lambda adapter: adapter if adapter.Digests else None)


def archive_adapter():
    """The adapter that reads the members of a checkpoint, whether its framework is imported."""
    return next(
        adapter for adapter in map(adapter_of, names()) if type(adapter).load_archive
        is not Adapter.load_archive
    )  # fmt: skip
