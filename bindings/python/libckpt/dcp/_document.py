"""Document: what DCP must know of a checkpoint before it loads it, as JSON and not as a pickle.

It is one item of rank 0. It holds DCP's own metadata, and where each chunk of a tensor and each
object lies: the rank that captured it, and the name under which it did.
"""

import dataclasses
import io
import json

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from libckpt import errors
from libckpt.core import _items, _rebuild

ITEM = ".dcp.metadata"  # Its name among the items; no name of a state dict begins like that.
VERSION = 1
ROOM = 16 << 10  # A number that grows by a digit must not need another Slot.
LAYOUTS = {str(each): each for each in (torch.strided,)}
FORMATS = {str(each): each for each in (torch.contiguous_format, torch.channels_last,
                                        torch.preserve_format)}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Stored:
    """A chunk or an object of the state dict, captured by one rank, which sends this to rank 0."""

    rank: int
    name: str = ""  # The array's; "": the text has all of it.
    is_alone: bool = False  # Whether a chunk is a tensor of its own, and no part of one.
    text: str = ""  # JSON.
    form: str = ""  # An object's bytes: "json", or "torch" if torch.save made them.
    length: int = 0  # For an object's bytes.
    room: int = 0  # In the array that has them.


def make(metadata, results, world_size):
    """The document as a tensor of bytes. `results`: the answers of the ranks' write_data."""
    stored = {_key(each.index): each.storage_data for part in results for each in part}
    tensors, objects = {}, {}
    for fqn, each in metadata.state_dict_metadata.items():
        if isinstance(each, TensorStorageMetadata):
            tensors[fqn] = _tensor(fqn, each, stored)
        else:
            objects[fqn] = dataclasses.asdict(stored[fqn, None])
    document = {
        "version": VERSION, "world_size": world_size,
        "dcp_version": getattr(metadata, "version", None),  # That of torch 2.6 has none.
        "tensors": tensors, "objects": objects, "planner": text_of(metadata.planner_data),
    }  # fmt: skip
    content = json.dumps(document, separators=(",", ":")).encode()
    content += b" " * (-len(content) % ROOM)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _tensor(fqn, metadata, stored):
    properties, chunks = metadata.properties, []
    for chunk in metadata.chunks:
        place = stored[fqn, tuple(chunk.offsets)]
        chunks.append(
            [list(chunk.offsets), list(chunk.sizes), place.rank, place.name, place.is_alone]
        )
    return {
        "type": str(properties.dtype).removeprefix("torch."),
        "layout": str(properties.layout), "memory_format": str(properties.memory_format),
        "requires_grad": properties.requires_grad, "pin_memory": properties.pin_memory,
        "size": list(metadata.size), "chunks": chunks,
    }  # fmt: skip


def text_of(value):
    """The value as JSON. Raises Unsupported for what only a pickle can hold, or holds tensors."""
    structure, tensors, members = _items.flatten({"value": value})
    if tensors or members:
        raise errors.Unsupported("an object of a state dict holds tensors")
    return structure


def value_of(text):
    return _rebuild.rebuild(json.loads(text), {}, {})["value"]


def bytes_of(text):
    """As a planner wants an object: what torch.save makes of the value, made here and now."""
    content = io.BytesIO()
    torch.save(value_of(text), content)
    content.seek(0)
    return content


class Document:
    """A document that was read again."""

    def __init__(self, text):
        self._fields = json.loads(text)
        if self._fields["version"] != VERSION:
            raise errors.Unsupported(
                f"dcp: the checkpoint's metadata is of version {self._fields['version']}, and this "
                f"libckpt reads {VERSION}: load it with the libckpt that saved it"
            )
        self.world_size = self._fields["world_size"]
        self._places = {}
        for fqn, each in self._fields["tensors"].items():
            for offset, sizes, *stored in each["chunks"]:
                rank, name, is_alone = stored
                # Where a rank has several chunks of a tensor, each is a tensor of its own.
                size = sizes if is_alone else each["size"]
                begin = [0] * len(offset) if is_alone else offset
                kind = getattr(torch, each["type"])
                self._places[fqn, tuple(offset)] = Place(rank, name, kind, size, begin, sizes)
        for fqn, each in self._fields["objects"].items():
            self._places[fqn, None] = Place.of_object(Stored(**each))

    def metadata(self):
        """As DCP wants it."""
        described = {fqn: _described(each) for fqn, each in self._fields["tensors"].items()}
        described |= {fqn: BytesStorageMetadata() for fqn in self._fields["objects"]}
        planner = value_of(self._fields["planner"])
        made = Metadata(described, planner_data=planner, storage_data={})
        if hasattr(made, "version"):
            made.version = self._fields["dcp_version"]
        return made

    def place(self, index):
        """The Place of an index of DCP's."""
        return self._places[_key(index)]

    def by_rank_and_name(self):
        return {(place.rank, place.name): place for place in self._places.values()}


@dataclasses.dataclass(eq=False)
class Place:
    """Where a chunk lies: in the array of that name, which the rank captured. Or an object."""

    rank: int
    name: str
    type: torch.dtype
    size: list  # The whole tensor's.
    begin: list  # The chunk's, in it.
    sizes: list
    stored: Stored | None = None  # The object that the bytes are.

    @classmethod
    def of_object(cls, stored):
        room = [stored.room]
        return cls(stored.rank, stored.name, torch.uint8, room, [0], room, stored)


def _key(index):
    return index.fqn, None if index.offset is None else tuple(index.offset)


def _described(entry):
    return TensorStorageMetadata(
        TensorProperties(
            dtype=getattr(torch, entry["type"]), layout=LAYOUTS[entry["layout"]],
            requires_grad=entry["requires_grad"], memory_format=FORMATS[entry["memory_format"]],
            pin_memory=entry["pin_memory"],
        ),
        torch.Size(entry["size"]),
        [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s, *_ in entry["chunks"]],
    )  # fmt: skip
