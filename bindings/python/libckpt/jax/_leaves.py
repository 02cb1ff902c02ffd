"""Leaves: the values in a tree, by name, and how the elements of its arrays are stored.

Arrays of JAX are captured as they lie on the devices. All else (numbers, strings, arrays of numpy,
and arrays that are on one process only, while there are several) is each process's own: an item.
"""

import dataclasses

import jax
import numpy

from libckpt import errors
from libckpt.core import _tensors

ALIGNMENT = 64  # JAX takes memory that is aligned so as it is, without a copy.


class Leaves(dict):
    """By name. `paths`: by name, the words of those of which two would have one name, as in
    {"a.b": x, "a": {"b": y}}."""

    def __init__(self):
        super().__init__()
        self.paths = {}


def named(tree, paths=None):
    """(Leaves, the structure that puts them together again). `paths`: those of a checkpoint, whose
    names its leaves are given."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    there = {tuple(words): name for name, words in (paths or {}).items()}
    leaves, known = Leaves(), {_text_of(words) for words in there}
    by_text = {}  # By what would be the name, the names.
    for path, leaf in pairs:
        words = _words_of(path)
        text = name = _text_of(words)
        if text in known:
            name = there.get(words, text)
        while name in leaves or (text in known and words not in there and name in paths):
            name += "'"
        leaves[name] = leaf
        by_text.setdefault(text, []).append((name, words))
    leaves.paths = {name: words for text, each in by_text.items() for name, words in each
                    if len(each) > 1 or name != text}  # fmt: skip
    return leaves, structure


def check_names(leaves, paths, stored):
    """Raises InvalidArgument where the checkpoint, whose `paths` and names are given, has fewer of
    one name than the leaves are: nothing says which of them."""
    known, groups = {_text_of(words) for words in paths.values()}, {}
    for name, words in leaves.paths.items():
        groups.setdefault(_text_of(words), []).append((name, words))
    for text, group in groups.items():
        count = sum(name in stored for name, _ in group)
        if text not in known and 0 < count < len(group):
            both = " and ".join(str(list(words)) for _, words in group)
            raise errors.InvalidArgument(
                f'restore: "{text}" is the name of both {both} in `like`, and the checkpoint has '
                f"{count} of that name: nothing says which; give `like` without the other"
            )


def _text_of(words):
    """As it would be written: layers.0.w; what JAX has a mark of its own for goes without."""
    return ".".join(words).replace("//", "/'/") or "tree"


def _words_of(path):
    words = []
    for key in path:
        word = getattr(key, "name", None)
        for attribute in ("key", "idx"):
            word = getattr(key, attribute, None) if word is None else word
        words.append(str(key if word is None else word))
    return tuple(words)


def is_key(leaf):
    """Whether it is an array of PRNG keys, or stands for one."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def is_global(leaf):
    """Whether all processes know of the array."""
    return isinstance(leaf, jax.Array) and (
        jax.process_count() == 1 or not leaf.is_fully_addressable
    )


def implementation(leaf):
    """The name of that of a key; None: it is no key."""
    if not is_key(leaf):
        return None
    return str(jax.random.key_impl(leaf))


def data_of(leaf):
    """The numbers that an array consists of: those of keys."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


@dataclasses.dataclass(frozen=True)
class Spec:
    """An array as a checkpoint has it."""

    shape: tuple
    dtype: str  # Its name.
    cuts: tuple  # Where its cells begin, in each dimension.
    key: str | None = None  # The implementation of PRNG keys, of which it is the data.

    @classmethod
    def from_parts(cls, shape, dtype, cuts, key):
        return cls(tuple(shape), dtype, tuple(map(tuple, cuts)), key)

    def parts(self):
        return [self.shape, self.dtype, self.cuts, self.key]

    def in_words(self):
        kind = f"PRNG keys ({self.key}) of " if self.key else ""
        return f"{kind}{self.dtype} {list(self.shape)}"


def dtype_of(name):
    """The type of numpy; those that only JAX has come from jax.numpy."""
    try:
        return numpy.dtype(jax.numpy.dtype(name))
    except TypeError as error:
        raise errors.Unsupported(
            f"a saved array is of the type {name}, which jax {jax.__version__} does not have: "
            "restore it with the version that saved it, or a newer one"
        ) from error


def stored(array):
    """(the array as it is stored, what its shape then has behind it): a type without a name in
    safetensors is stored as its bytes."""
    if len(_tensors.stored_form(array)[1]) == array.ndim:
        return array, ()
    item = array.dtype.itemsize
    return array.reshape((*array.shape, 1)).view(numpy.uint8), (item,)


def empty(shape, dtype):
    """An array that JAX can take as it is."""
    count = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    room = numpy.empty(count + ALIGNMENT, numpy.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + count].view(dtype).reshape(shape)
