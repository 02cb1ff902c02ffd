"""Torch members: objects that become files of their own, which stock torch.load opens.

The pickle is torch's own, made here into memory; the bytes of the storages are never touched: their
addresses go down, and the library lays a zip archive out around them. What torch does with a file,
`load` does with the entries of one that was restored.
"""

import io
import pickle

from libckpt import _views
from libckpt.errors import Corruption, InvalidArgument

PROTOCOL = 2  # As torch.save.
SLACK = 16 << 10  # A pickle that grows by a number's digit must not need another Slot.


class TorchMember:
    """Marks an item, or a part of one, that is to be a file of its own in the checkpoint.

    Among the items of a Session its name is that of the file; up to 12 in all.
    """

    def __init__(self, content):
        self.content = content


def entries_of(name, content):
    """What the archive is made of: by name of the entry, its View."""
    import torch

    storages = {}
    pickled = _pickle(name, content, storages)
    entries = {"data.pkl": _bytes_view(torch, pickled), "byteorder": _bytes_view(torch, b"little")}
    for key, storage in storages.items():
        entries[f"data/{key}"] = _storage_view(name, storage)
    entries["version"] = _bytes_view(torch, b"3\n")
    entries[".padding"] = _bytes_view(torch, bytes(1 + -len(pickled) % SLACK))
    return entries


def _pickle(name, content, storages):
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

    into = io.BytesIO()
    try:
        Pickler(into, protocol=PROTOCOL).dump(content)
    except Exception as error:
        raise InvalidArgument(
            f'item "{name}" is a {type(content).__name__} and cannot be pickled ({error}): '
            "leave that part out, or give its state_dict()"
        ) from error
    return into.getvalue()


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


def load(name, entries):
    """The object again; its tensors share the memory of the entries, which are numpy arrays."""
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

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, saved):
            return storage_of(saved)

    return Unpickler(io.BytesIO(entries["data.pkl"].tobytes())).load()


def _storage(torch, content):
    if content.nbytes == 0:
        return torch.UntypedStorage(0, device="cpu")
    return torch.from_numpy(content).untyped_storage()
