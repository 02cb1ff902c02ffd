"""Structure: the blob of a step that says what its tensors are parts of."""

import json
import zlib

from libckpt import errors

BLOB = "libckpt.items"
TEXT_BYTES_MAX = 512  # For each tensor: a structure with more is not deflated to fit.
BLOB_CAPACITY = 4 << 20  # For the structure, with what was pickled in it.


class Structure:
    def __init__(self, client):
        self._client = client
        self._deflated = (None, None)  # The newest structure that had no room, and its short form.

    def make_room(self):
        """Gives a Slot room for the structure from the beginning."""
        if self._client.blob(BLOB) is None:
            self._client.set_blob(BLOB, b"")

    def set(self, structure):
        """Sets the structure of the next capture, a text; deflates it where there is no room."""
        content = structure.encode()
        try:
            try:
                self._client.set_blob(BLOB, content)
            except errors.Exhausted:
                if len(content) > content.count(b'"t":"') * TEXT_BYTES_MAX:
                    raise  # It is not for the tensors, whose names are much alike.
                if self._deflated[0] != content:
                    self._deflated = (content, zlib.compress(content, 1))
                self._client.set_blob(BLOB, self._deflated[1])
        except errors.Exhausted as error:
            parts = json.loads(structure)
            sizes = {name: len(json.dumps(part)) for name, part in parts.items()}
            name = max(sizes, key=sizes.get)
            raise errors.Exhausted(
                f'the plain data of the items is too large, that of item "{name}" the largest with '
                f"{sizes[name]} bytes: save long lists and what holds tensors as tensors, arrays, "
                f"lists or dictionaries, or give libckpt.init a larger blob_capacity ({error})"
            ) from error


def parsed(content):
    """The items of a step, whose parts its tensors are; None: its blob does not say."""
    if not content:
        return None
    try:
        return json.loads(content if content.startswith(b"{") else zlib.decompress(content))
    except (zlib.error, ValueError) as error:
        raise errors.Corruption(f"the items' structure cannot be read: {error}") from error


def items_by_name(structure):
    """By name of the tensor, the item that it is a part of."""
    return {node["t"]: item for item, part in structure.items() for node in tensor_nodes(part)}


def tensor_nodes(node):
    if isinstance(node, list):
        for part in node:
            yield from tensor_nodes(part)
    elif isinstance(node, dict):
        if isinstance(node.get("t"), str):
            yield node
        else:
            yield from tensor_nodes(list(node.values()))
