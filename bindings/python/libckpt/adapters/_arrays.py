"""Arrays: the adapter for numpy, whose arrays are tensors.

Types that other packages add to numpy, such as bfloat16 of ml_dtypes, go by their names.
"""

import contextlib
import functools
import importlib

import numpy

from libckpt.core import _frameworks, _tensors
from libckpt.errors import Unsupported

TYPE_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64",
    "float64": "F64", "complex64": "C64", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
ADDED = "ml_dtypes"  # The package that adds types to numpy once it is imported.


def text_of(kind):
    """Names a type: numpy's own short text says nothing of one that was added."""
    return kind.name if kind.type.__module__ == ADDED else kind.str


@functools.cache  # numpy makes a type's name anew each time.
def named_type(text):
    kind = type_of(text)
    return TYPE_NAMES.get(kind.name) if kind.isnative else None, kind.itemsize


def type_of(text):
    try:
        return numpy.dtype(text)
    except TypeError:
        with contextlib.suppress(ImportError):
            importlib.import_module(ADDED)
    try:
        return numpy.dtype(text)
    except TypeError as error:
        raise Unsupported(
            f"a saved array is of the type {text}, which numpy has from the package {ADDED}: "
            "install it"
        ) from error


class Arrays(_tensors.Kind):
    key = "numpy"
    type_names = TYPE_NAMES
    may_grow = True

    def is_kind_of(self, type_of_value):
        return type_of_value in (numpy.ndarray, numpy.memmap)

    def is_one(self, value):
        """An array whose bytes, type and shape are all there is to it: one of records is more."""
        return value.dtype.names is None

    def check(self, name, array):
        if array.dtype.hasobject:
            raise Unsupported(f'array "{name}": it holds Python objects; save them as a list')

    def type_text(self, array):
        return text_of(array.dtype)

    def named_type(self, text):
        return named_type(text)

    def is_contiguous(self, array):
        return array.flags.c_contiguous

    def strides(self, array):
        return array.strides

    def permuted(self, array, order):
        return array.transpose(order)

    def from_bytes(self, content, text, shape):
        return content.view(type_of(text)).reshape(shape)

    def why_not_writable(self, array):
        return "" if array.flags.writeable else "the array is read-only: give a copy of it"

    def memory_of(self, array):
        base = array
        while _tensors.kind_of(base.base) is self:
            base = base.base
        return base.__array_interface__["data"][0]

    def copy(self, source, target):
        target[...] = source

    def is_equal(self, one, other):
        return one.tobytes() == other.tobytes()

    # --- for views

    def buffer_like(self, array):
        return numpy.empty(array.shape, dtype=array.dtype)

    def fits(self, kept, array):
        return kept.dtype == array.dtype and kept.shape == array.shape

    def address_of(self, array):
        return array.ctypes.data


class Numpy(_frameworks.Adapter):
    tensors = Arrays()

    def parts_of(self, value):
        if isinstance(value, numpy.dtype):
            return None if value.hasobject or value.names else ("numpy.dtype", text_of(value))
        is_number = isinstance(value, numpy.generic)
        if is_number and value.dtype.names is None and not value.dtype.hasobject:
            return "numpy", [text_of(value.dtype), value.tobytes()]
        return None

    def make(self, name, parts):
        if name == "numpy.dtype":
            return type_of(parts)
        kind, content = type_of(parts[0]), parts[1]
        return numpy.frombuffer(content, kind)[0] if kind.itemsize else numpy.zeros((), kind)[()]

    def is_constant(self, item):
        return isinstance(item, numpy.generic)

    def fill_object(self, item, value):
        if isinstance(item, numpy.random.Generator):
            item.bit_generator.state = value.bit_generator.state
        elif isinstance(item, numpy.random.RandomState):
            item.set_state(value.get_state())
        elif isinstance(item, numpy.ndarray) and item.shape == value.shape:
            item[...] = value
        else:
            return False
        return True

    def rng_state(self):
        return {"numpy": list(numpy.random.get_state())}

    def seed(self, seed):
        numpy.random.seed(seed % (1 << 32))

    def check_rng(self, state):
        if len(state["numpy"]) != 5 or state["numpy"][0] != "MT19937":
            raise ValueError(f"the state of numpy's generator is {state['numpy'][:1]}")

    def load_rng(self, state):
        numpy.random.set_state(tuple(state["numpy"]))


ADAPTER = Numpy()
