"""Kept memory: what a capture reads beside training, kept alive until the copies have left it."""


class KeptMemory:
    """Some storages, and other objects that hold memory."""

    def __init__(self, storages, members, constants=()):
        self._storages, self._members, self._constants = storages, members, constants
        self._addresses = None  # Asked for by few trainers: when they resize, or write unseen.

    def has(self, address):
        """Whether one of the storages begins there; None may be anywhere."""
        if self._addresses is None:
            found = {storage.data_ptr() for storage in self._storages}
            for entries in self._members.values():
                found.update(view.address for view in entries.values())
            self._addresses = found - {0}  # 0: tensors without a byte.
        return address is None or address in self._addresses


def memory_of(tensors, counted, views, members, gpus, constants=()):
    """Memory that must stay while it is copied, whatever the trainer does to its tensors meanwhile.
    None: all of it is copied before a save returns."""
    if not counted and not gpus and not constants:
        return None
    storages = []
    if counted or gpus:
        storages = [
            tensor.untyped_storage()
            for name, tensor in tensors.items()
            if name in counted or views[name].gpu >= 0
        ]
    return KeptMemory(storages, members, constants)
