"""Coordinator: the key-value store of jax.distributed, through which the processes of a job talk.

JAX has no public door to it, so that this module asks for the methods that it needs, and says which
one is not there.
"""

import threading

from libckpt import errors

NEEDED = ("blocking_key_value_get", "key_value_delete", "key_value_set", "key_value_try_get")
GET_SECONDS = 60.0


def group_of(world_size):
    """None: jax.distributed is not in use, or has another number of processes."""
    state = _state()
    if state is None or state.num_processes != world_size:
        return None
    return Group(state)


def standing():
    """(process, number of processes); None: jax.distributed is not in use."""
    state = _state()
    return None if state is None else (state.process_id, state.num_processes)


def _state():
    """None: jax.distributed.initialize() was not called."""
    try:
        from jax._src import distributed
    except ImportError:  # Another version of JAX, or one that is only half imported.
        return None
    state = getattr(distributed, "global_state", None)
    return state if getattr(state, "client", None) is not None else None


class Group:
    def __init__(self, state):
        self.store = Store(state.client)
        address = getattr(state, "coordinator_address", None) or ""
        self.host = address.rpartition(":")[0].strip("[]") or None  # Process 0's.


class Store:
    """As torch's: RuntimeError where a value does not come in time."""

    def __init__(self, client):
        missing = [name for name in NEEDED if not hasattr(client, name)]
        if missing:
            import jax

            raise errors.Unsupported(
                f"jax {jax.__version__}: the client of its coordinator has no {missing[0]}, by "
                "which the processes of a job talk: use a version of JAX that libckpt's guide on "
                "versions names"
            )
        self._client = client
        self._lock = threading.Lock()

    def set(self, key, value):
        self._client.key_value_set(key, value, allow_overwrite=True)

    def get(self, key):
        return self._client.blocking_key_value_get(key, int(GET_SECONDS * 1000)).encode()

    def wait(self, keys, timeout):
        for key in keys:
            self._client.blocking_key_value_get(key, int(timeout.total_seconds() * 1000))

    def check(self, keys):
        return all(self._has(key) for key in keys)

    def _has(self, key):
        try:
            self._client.key_value_try_get(key)
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return False
            raise
        return True

    def delete_key(self, key):
        self._client.key_value_delete(key)
