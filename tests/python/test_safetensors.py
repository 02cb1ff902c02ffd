"""Goal: whoever has only the safetensors package reads our files, and reads the right bytes.

Method: a C++ program saves tensors whose bytes follow from a rule, through a real daemon; the rule
is written here a second time, and the file is opened with the reference readers.
"""

import json
import os
import subprocess
import zlib

import numpy
import pytest
from stored_parts import read_part

safetensors = pytest.importorskip("safetensors")

KNOWN = [
    ("scalar", "F32", []),
    ("empty", "F64", [3, 0]),
    ("page", "F32", [1024]),
    ("page.less", "U8", [4095]),
    ("page.more", "U8", [17, 241]),
    ("chunk.more", "F32", [1024, 1025]),
    ("flags", "BOOL", [5, 3]),
    ("i8", "I8", [7]),
    ("u16", "U16", [3, 5]),
    ("i16", "I16", [3, 5]),
    ("f16", "F16", [9]),
    ("bf16", "BF16", [33, 3]),
    ("u32", "U32", [2, 2, 2]),
    ("i32", "I32", [11]),
    ("u64", "U64", [4]),
    ("i64", "I64", [1, 6]),
    ("f64", "F64", [6, 1]),
    ("c64", "C64", [5]),
    ("f8_e4m3", "F8_E4M3", [13]),
    ("f8_e5m2", "F8_E5M2", [13]),
    ('name "quoted" \u00e9', "U8", [3]),
    ("box", "F32", [2, 3]),
    ("range", "F32", [5]),
]
PIECE_KEYS = ("global_shape", "offset", "flat_begin")
PIECES = {
    "box": {"global_shape": [8, 6], "offset": [6, 3], "flat_begin": None},
    "range": {"global_shape": [8, 6], "offset": [], "flat_begin": 13},
}
ELEMENT_BYTES = {"BOOL": 1, "BF16": 2, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1}
NUMPY_TYPES = {
    "F32": "<f4", "F64": "<f8", "U8": "u1", "BOOL": "?", "I8": "i1", "U16": "<u2", "I16": "<i2",
    "F16": "<f2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8", "C64": "<c8",
}  # fmt: skip


def known_bytes(number, dtype, shape):
    size = ELEMENT_BYTES.get(dtype) or int(dtype[1:]) // 8
    count = size
    for dimension in shape:
        count *= dimension
    index = numpy.arange(count, dtype=numpy.uint64)
    values = 131 * number + 7 * index + index // 251
    return (values & (1 if dtype == "BOOL" else 255)).astype(numpy.uint8).tobytes()


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    from conftest import BUILD

    work = tmp_path_factory.mktemp("known")
    program = BUILD / "bin" / "python_known_values"
    runtime = work / "runtime"
    try:
        subprocess.run(
            [program, work / "dir", runtime, BUILD / "bin" / "ckptd"], timeout=120, check=True
        )
    finally:
        subprocess.run(
            [BUILD / "bin" / "ckpt", "stop"],
            env={**os.environ, "LIBCKPT_RUNTIME_DIR": str(runtime)},
            capture_output=True,
            timeout=60,
            check=False,
        )
    return work / "dir" / "step-000000042"


def test_safe_open_sees_the_names_shapes_and_bytes(step):
    with safetensors.safe_open(step / "rank-00000.safetensors", framework="np") as file:
        assert sorted(file.keys()) == sorted(name for name, _, _ in KNOWN)
        for number, (name, dtype, shape) in enumerate(KNOWN):
            view = file.get_slice(name)
            assert (view.get_dtype(), view.get_shape()) == (dtype, shape)
            if dtype in NUMPY_TYPES:
                tensor = file.get_tensor(name)
                assert tensor.dtype == numpy.dtype(NUMPY_TYPES[dtype])
                assert list(tensor.shape) == shape
                assert tensor.tobytes() == known_bytes(number, dtype, shape)


def test_deserialize_sees_every_type(step):
    found = dict(safetensors.deserialize((step / "rank-00000.safetensors").read_bytes()))
    assert len(found) == len(KNOWN)
    for number, (name, dtype, shape) in enumerate(KNOWN):
        tensor = found[name]
        assert (tensor["dtype"], list(tensor["shape"])) == (dtype, shape)
        assert bytes(tensor["data"]) == known_bytes(number, dtype, shape)


def test_torch_opens_it_too(step):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    tensors = load_file(step / "rank-00000.safetensors")
    assert set(tensors) == {name for name, _, _ in KNOWN}
    for number, (name, dtype, shape) in enumerate(KNOWN):
        flat = tensors[name].contiguous().reshape(-1).view(torch.uint8)
        assert list(tensors[name].shape) == shape
        assert flat.numpy().tobytes() == known_bytes(number, dtype, shape)


def test_tied_tensors_are_told_in_the_metadata(step):
    with safetensors.safe_open(step / "rank-00000.safetensors", framework="np") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert int(metadata["step"]) == 42
    assert json.loads(metadata["libckpt.aliases"]) == {"tied": "chunk.more"}


def test_the_manifest_s_checksums_are_those_of_the_files(step):
    manifest = json.loads((step / "manifest.json").read_text())
    members = manifest["shards"][0]["members"]
    assert [member["file"] for member in members] == ["rank-00000.safetensors", "rank-00000.blobs"]
    for member in members:
        content = (step / member["file"]).read_bytes()
        assert len(content) == member["bytes"]
        assert zlib.crc32(content) == member["crc32"]


def test_the_part_tells_where_each_tensor_lies(step):
    front, tensors = read_part((step / "rank-00000.part").read_bytes())
    content = (step / "rank-00000.safetensors").read_bytes()
    numbers = {name: number for number, (name, _, _) in enumerate(KNOWN)}
    numbers["tied"] = numbers["chunk.more"]
    assert {tensor["name"] for tensor in tensors} == set(numbers)
    for tensor in tensors:
        offset, size = tensor["extent"]
        expected = known_bytes(numbers[tensor["name"]], tensor["dtype"], tensor["shape"])
        assert content[offset : offset + size] == expected
        piece = tensor["piece"]
        assert PIECES.get(tensor["name"]) == (piece and {key: piece[key] for key in PIECE_KEYS})
    (blob,) = front["blobs"]
    offset = blob["extent"][0] - front["members"][1]["extent"][0]
    content = (step / "rank-00000.blobs").read_bytes()
    assert (blob["name"], content[offset : offset + blob["extent"][1]]) == ("note", b"a blob")


def test_torch_finds_the_pieces_where_they_lie(step):
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    metadata = HuggingFaceStorageReader(str(step)).read_metadata().state_dict_metadata
    assert metadata["box"].size == torch.Size([8, 6])
    (chunk,) = metadata["box"].chunks
    assert (list(chunk.offsets), list(chunk.sizes)) == ([6, 3], [2, 3])
    (chunk,) = metadata["range"].chunks
    assert (list(chunk.offsets), list(chunk.sizes)) == ([13], [5])
    (chunk,) = metadata["page"].chunks
    assert (list(chunk.offsets), list(chunk.sizes)) == ([0], [1024])
