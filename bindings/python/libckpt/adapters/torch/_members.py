"""Torch members: objects that become files of their own, which stock torch.load opens.

The pickle is torch's own, made here into memory; the bytes of the storages are never touched: their
addresses go down, and the library lays a zip archive out around them. `load` reads the
entries of a restored file as torch reads a file.
"""

import io
import pickle
import types

from libckpt.core import _item_kinds, _signals, _views
from libckpt.errors import CheckpointError, Corruption, InvalidArgument, Unsupported

PROTOCOL = 2  # As torch.save.
GLOBALS = (type, types.FunctionType, types.BuiltinFunctionType)  # A pickle has their names.
SLACK = 16 << 10  # A pickle that grows by a number's digit must not need another Slot.


class TorchMember(_item_kinds.Member):
    """Marks an item, or a part of one, that is to be a file of its own in the checkpoint.

    Among the items of a Session its name is that of the file; up to 12 in all. An object
    with a `state_dict` gives that, unless the object is to be there `as_it_is`.
    """

    def __init__(self, content, as_it_is=False):
        super().__init__(content)
        self._as_it_is = as_it_is

    def entries(self, name, allow_pickle):
        import torch

        is_owner = _item_kinds.has_state(self.content) and not self._as_it_is
        content = self.content.state_dict() if is_owner else self.content
        storages = {}
        pickled = _pickle(name, content, storages, allow_pickle)
        return {
            "data.pkl": _bytes_view(torch, pickled),
            "byteorder": _bytes_view(torch, b"little"),
            **{f"data/{key}": _storage_view(name, part) for key, part in storages.items()},
            "version": _bytes_view(torch, b"3\n"),
            ".padding": _bytes_view(torch, bytes(1 + -len(pickled) % SLACK)),
        }


def _pickle(name, content, storages, allow_pickle):
    from torch import is_storage
    from torch.serialization import location_tag, normalize_storage_type
    from torch.storage import TypedStorage

    keys = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, part):
            if isinstance(part, TypedStorage):
                untyped, count = part._untyped_storage, part._size()
                import torch

                kind = getattr(torch, part._pickle_storage_type())
            elif is_storage(part):
                untyped, count, kind = part, part.nbytes(), normalize_storage_type(type(part))
            else:
                return None
            key = keys.setdefault(untyped._cdata, str(len(keys)))
            storages[key] = untyped
            return ("storage", kind, key, location_tag(untyped), count)

        def reducer_override(self, part):
            if not allow_pickle and isinstance(part, GLOBALS) and not _is_plain(part):
                raise Unsupported(
                    f'item "{name}" holds a {part.__module__}.{part.__qualname__}, which '
                    "torch.load with weights_only=True refuses: leave it out, or open the session "
                    "with allow_pickle=True"
                )
            return NotImplemented

    into = io.BytesIO()
    try:
        Pickler(into, protocol=PROTOCOL).dump(content)
    except CheckpointError:
        raise
    except Exception as error:
        _signals.raise_of_handler(error)
        raise InvalidArgument(
            f'item "{name}" is a {type(content).__name__} and cannot be pickled ({error}): '
            "leave that part out, or give its state_dict()"
        ) from error
    return into.getvalue()


def _is_plain(part):
    """Whether a pickle that names it is one that torch.load reads with weights_only=True."""
    from torch import _weights_only_unpickler as plain

    name = f"{part.__module__}.{part.__qualname__}"
    return name in plain._get_allowed_globals() or name in plain._get_user_allowed_globals()


def _bytes_view(torch, content):
    kept = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return _views.View(kept, kept.data_ptr(), "U8", (len(content),), -1, is_buffered=True)


def _storage_view(name, storage):
    if storage.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(
            f'item "{name}": one of its tensors lies on the device {storage.device}: '
            "move it to cpu or cuda"
        )
    gpu = storage.device.index or 0 if storage.device.type == "cuda" else -1
    address = storage.data_ptr() if storage.nbytes() else 0
    return _views.View(storage, address, "U8", (storage.nbytes(),), gpu)


def load(name, entries, allow_pickle):
    """The object again; its tensors share the memory of the entries, which are numpy arrays.

    Without `allow_pickle`, torch's own reader for weights_only=True makes it.
    """
    import torch

    if "data.pkl" not in entries:
        raise Corruption(f'member "{name}": it has no data.pkl')
    made = {}

    def storage_of(saved):
        _, kind, key, _, _ = saved
        if key not in made:
            made[key] = _storage(torch, entries[f"data/{key}"])
        # The public name of it warns that kinds of storages will go.
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind._dtype
        return torch.storage.TypedStorage(wrap_storage=made[key], dtype=dtype, _internal=True)

    content = io.BytesIO(entries["data.pkl"].tobytes())
    if not allow_pickle:
        return _load_plain(name, content, storage_of)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, saved):
            return storage_of(saved)

    return Unpickler(content).load()


def _load_plain(name, content, storage_of):
    from torch import _weights_only_unpickler

    unpickler = _weights_only_unpickler.Unpickler(content, encoding="utf-8")
    unpickler.persistent_load = storage_of
    try:
        return unpickler.load()
    except pickle.UnpicklingError as error:
        raise Unsupported(
            f'member "{name}" holds more than tensors and plain containers ({error}): open the '
            "session with allow_pickle=True if you trust its origin"
        ) from error


def _storage(torch, content):
    if content.nbytes == 0:
        return torch.UntypedStorage(0, device="cpu")
    return torch.from_numpy(content).untyped_storage()
