"""Goal: the format's document is enough to read a checkpoint.

Method: a reader written from it reads the stored examples, which have whole tensors, a box, a flat
range, another order of dimensions and another copy.
"""

import json
import pathlib
import zlib

from stored_parts import read_front, read_part

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"


def stored(name):
    return (GOLDEN / name).read_bytes()


def test_the_part_says_what_the_files_hold():
    front, tensors = read_part(stored("v2.part"))
    assert (front["job"], front["timeline"], front["step"]) == ("gpt2", 2, 900)
    assert (front["rank"], front["world_size"]) == (0, 1)
    names = ["v2.safetensors", "v2.blobs"]
    for file, member, name in zip(front["files"], front["members"], names, strict=True):
        content = stored(name)
        assert file["bytes"] == len(content)
        assert file["crc32"] == zlib.crc32(content)
        if member["kind"] == "safetensors":
            length = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + length])
    for tensor in tensors:
        if tensor["alias_of"]:
            continue
        described = header[tensor["name"]]
        assert (described["dtype"], described["shape"]) == (tensor["dtype"], tensor["shape"])
        offset, size = tensor["extent"]
        content = stored("v2.safetensors")[offset : offset + size]
        assert content == bytes(index % 251 for index in range(size))


def test_the_pieces_are_those_of_the_example():
    _, tensors = read_part(stored("v2.part"))
    pieces = {tensor["name"]: tensor["piece"] for tensor in tensors if tensor["piece"]}
    box, flat = pieces["layer.weight"], pieces["layer.exp_avg"]
    assert (box["global_shape"], box["offset"], box["flat_begin"]) == ([64, 128], [48, 64], None)
    assert (flat["global_shape"], flat["offset"], flat["flat_begin"]) == ([64, 128], [], 7492)
    assert pieces["conv.weight"]["order"] == [0, 2, 3, 1]
    assert pieces["router"]["copy"] == 3
    assert len(pieces) == 4
    length = int.from_bytes(stored("v2.safetensors")[:8], "little")
    metadata = json.loads(stored("v2.safetensors")[8 : 8 + length])["__metadata__"]
    told = json.loads(metadata["libckpt.pieces"])
    assert set(told) == set(pieces)
    for name, piece in told.items():
        assert piece == {key: pieces[name][key] for key in piece}


def test_common_state_is_a_blob_that_its_name_shows():
    common, plain = (read_front(stored(name)) for name in ["v2.common.part", "v2.part"])
    assert [blob["name"] for blob in common["blobs"]] == ["libckpt.common/args", "rng"]
    assert common["blob_bytes"] == plain["blob_bytes"]


def test_the_chunks_are_those_of_the_files_with_zeros_between_them():
    front = read_front(stored("v2.part"))
    slot = bytearray(front["bytes"])
    for member, name in zip(front["members"], ["v2.safetensors", "v2.blobs"], strict=True):
        content = stored(name)
        slot[member["extent"][0] : member["extent"][0] + len(content)] = content
    size = front["chunk_bytes"]
    chunks = [slot[at : at + size] for at in range(0, len(slot), size)]
    assert [zlib.crc32(chunk) for chunk in chunks] == front["chunk_crcs"]


def test_the_root_names_the_part_and_the_files():
    root = json.loads(stored("v2.manifest.json"))
    assert (root["format"], root["format_version"]) == ("libckpt-manifest", 2)
    (shard,) = root["shards"]
    front = read_front(stored("v2.part"))
    assert shard["part"]["bytes"] == len(stored("v2.part"))
    assert shard["part"]["front_bytes"] == front["front_bytes"]
    assert shard["record_digest"] == front["record_digest"]
    assert shard["slot_bytes"] == front["slot_bytes"]
    for told, file, member in zip(shard["members"], front["files"], front["members"], strict=True):
        assert (told["file"], told["kind"]) == (member["file"], member["kind"])
        assert (told["bytes"], told["crc32"]) == (file["bytes"], file["crc32"])
