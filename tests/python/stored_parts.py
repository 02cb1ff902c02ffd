"""A reader of the parts of a checkpoint, written from libckpt/docs/format.md alone.

It has no digests of blocks: XXH3 is not in the standard library. The CRC of the front is checked.
"""

import struct
import zlib

DTYPES = (
    "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 U16 I16 F16 BF16 U32 I32 F32 U64 I64 F64 C64"
).split()
KINDS = {1: "safetensors", 2: "torch", 3: "raw"}


class _Cursor:
    def __init__(self, content):
        self.content = content
        self.at = 0

    def _number(self, form):
        (value,) = struct.unpack_from("<" + form, self.content, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def u8(self):
        return self._number("B")

    def u16(self):
        return self._number("H")

    def u32(self):
        return self._number("I")

    def u64(self):
        return self._number("Q")

    def digest(self):
        return f"{self.u64():016x}{self.u64():016x}"

    def string(self):
        length = self.u32()
        self.at += length
        return self.content[self.at - length : self.at].decode()

    def extent(self):
        return self.u64(), self.u64()

    def list(self, read_one):
        return [read_one() for _ in range(self.u32())]

    def optional(self, read_one):
        return read_one() if self.u8() else None

    def piece(self):
        return {
            "global_shape": self.list(self.u64),
            "offset": self.list(self.u64),
            "flat_begin": self.optional(self.u64),
            "order": self.list(self.u8),
            "copy": self.u32(),
        }

    def tensor(self):
        return {
            "name": self.string(),
            "dtype": DTYPES[self.u8()],
            "shape": self.list(self.u64),
            "extent": self.extent(),
            "member": self.u32(),
            "alias_of": self.string(),
            "piece": self.optional(self.piece),
        }

    def member(self):
        return {
            "file": self.string(),
            "kind": KINDS[self.u8()],
            "extent": self.extent(),
            "header_bytes": self.u64(),
        }

    def blob(self):
        return {"name": self.string(), "extent": self.extent()}

    def file(self):
        return {"bytes": self.u64(), "crc32": self.u32(), "archive": self.string()}

    def block(self):
        return {
            "first_name": self.string(),
            "tensors": self.u32(),
            "bytes": self.u32(),
            "digest": self.digest(),
        }


def read_front(content):
    """The front of a part, whose first bytes these are at least."""
    cursor = _Cursor(content)
    assert (cursor.u16(), cursor.u16()) == (2, 4)
    size = cursor.u32()
    (crc,) = struct.unpack_from("<I", content, size - 4)
    assert zlib.crc32(content[: size - 4]) == crc
    front = {
        "job": cursor.string(),
        "run": cursor.digest(),
        "timeline": cursor.u64(),
        "step": cursor.u64(),
        "rank": cursor.u32(),
        "world_size": cursor.u32(),
        "model": cursor.digest(),
        "layout_version": cursor.u32(),
        "blob_capacity": cursor.u64(),
        "slot_bytes": cursor.u64(),
        "members": cursor.list(cursor.member),
        "no_tensors": cursor.u32(),
        "blob_bytes": cursor.u64(),
        "blobs": cursor.list(cursor.blob),
        "bytes": cursor.u64(),
        "chunk_bytes": cursor.u64(),
        "chunk_crcs": cursor.list(cursor.u32),
        "record_digest": cursor.digest(),
        "files": cursor.list(cursor.file),
        "tensors": cursor.u32(),
        "blocks": cursor.list(cursor.block),
        "front_bytes": size,
    }
    assert front["no_tensors"] == 0
    assert cursor.at == size - 4
    return front


def read_part(content):
    """The front, and all tensors in their places."""
    front = read_front(content)
    tensors = [None] * front["tensors"]
    at, names = front["front_bytes"], []
    for block in front["blocks"]:
        cursor = _Cursor(content[at : at + block["bytes"]])
        for _ in range(block["tensors"]):
            place, tensor = cursor.u32(), cursor.tensor()
            assert tensors[place] is None
            tensors[place] = tensor
            names.append(tensor["name"].encode())
        assert cursor.at == block["bytes"]
        at += block["bytes"]
    assert at == len(content)
    assert names == sorted(names)
    return front, tensors
