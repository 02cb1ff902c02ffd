"""Goal: our reader of safetensors never accepts a file that the reference reader refuses.

Method: good files with headers of many kinds; thousands of them changed at random, in their bytes
and in their meaning. Both readers judge each. The seed is fixed, so that a failure comes back.
"""

import json
import os
import pathlib
import random
import struct
import subprocess

import pytest

safetensors = pytest.importorskip("safetensors")

BUILD = pathlib.Path(os.environ.get("CKPT_BUILD", "build/dev")).resolve()
MUTANTS = 6000
TYPES = {"F32": 4, "BF16": 2, "U8": 1, "I64": 8, "BOOL": 1, "F64": 8, "F8_E4M3": 1}
ODD_VALUES = [-1, 0, 1, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, 2**65, 0.5, "1", None, [], {}, True]
ODD_TYPES = ["f32", "F16", "X", "", "F4", "C64", 1, None]


def good_header(rng):
    """A header as it should be, and how many bytes of data it has."""
    header, at = {}, 0
    if rng.random() < 0.5:
        header["__metadata__"] = {"format": "pt", "step": str(rng.randrange(100))}
    for index in range(rng.randrange(5)):
        dtype = rng.choice(list(TYPES))
        shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
        size = TYPES[dtype]
        for dimension in shape:
            size *= dimension
        header[f"t{index}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def change_meaning(rng, header):
    tensors = [value for name, value in header.items() if name != "__metadata__"]
    if not tensors:
        header[rng.choice(["", "x", "__metadata__"])] = rng.choice([{}, None, {"a": 1}, "text"])
        return
    tensor = rng.choice(tensors)
    kind = rng.randrange(7)
    if kind == 0:
        tensor["data_offsets"][rng.randrange(2)] += rng.choice([-8, -1, 1, 4, 2**63])
    elif kind == 1:
        tensor["data_offsets"] = rng.choice([[], [0], [0, 4, 8], "0,4", [4, 0], None])
    elif kind == 2:
        tensor["shape"] = [rng.choice(ODD_VALUES) for _ in range(rng.randrange(4))]
    elif kind == 3:
        tensor["dtype"] = rng.choice(ODD_TYPES)
    elif kind == 4:
        del tensor[rng.choice(["dtype", "shape", "data_offsets"])]
    elif kind == 5:
        tensor[rng.choice(["more", "dtype ", "offset"])] = rng.choice(ODD_VALUES)
    else:
        header[f"u{rng.randrange(9)}"] = dict(tensor)


def change_text(rng, text):
    text = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(text):
            text[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            text[at:at] = rng.choice([b" ", b"{", b"}", b",", b"\x00", b"\xff", b"9", b'"', b"\n"])
        elif kind == 2:
            del text[at : at + rng.randrange(1, 4)]
        elif kind == 3:
            text[at:at] = text[at : at + rng.randrange(1, 30)]
        else:
            text += rng.choice([b" ", b"\x00", b"x", b"\t", b"{}"])
    return bytes(text)


def mutant(rng):
    header, data_bytes = good_header(rng)
    length_shift = 0
    if rng.random() < 0.7:
        change_meaning(rng, header)
    text = json.dumps(header, separators=rng.choice([(",", ":"), (", ", ": ")])).encode()
    text = rng.choice([b"", b"", b"", b" ", b"\n"]) + text + b" " * rng.randrange(3)
    if rng.random() < 0.5:
        text = change_text(rng, text)
    if rng.random() < 0.1:
        length_shift = rng.choice([-1, 1, 8, 2**40, 100_000_001])
    if rng.random() < 0.1:
        data_bytes = max(0, data_bytes + rng.choice([-1, 1, 8]))
    length = max(0, len(text) + length_shift)
    return struct.pack("<Q", length) + text + bytes(data_bytes)


def reference_accepts(file):
    try:
        safetensors.deserialize(file)
    except safetensors.SafetensorError:
        return False
    return True


def our_verdicts(files, place):
    path = place / "files"
    path.write_bytes(b"".join(struct.pack("<Q", len(file)) + file for file in files))
    program = BUILD / "bin" / "python_header_verdicts"
    done = subprocess.run([program, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(files)
    return lines


def test_a_header_that_the_reference_refuses_is_never_accepted(tmp_path):
    rng = random.Random(18)
    files = [mutant(rng) for _ in range(MUTANTS)]
    verdicts = our_verdicts(files, tmp_path)
    accepted = [file for file, verdict in zip(files, verdicts) if verdict == "yes"]
    assert [file for file in accepted if not reference_accepts(file)] == []
    # The mutants must be neither all good nor all bad, or nothing was compared.
    assert MUTANTS // 50 < len(accepted) < MUTANTS * 9 // 10


def test_good_headers_are_accepted_by_both(tmp_path):
    rng = random.Random(19)
    files = []
    for _ in range(500):
        header, data_bytes = good_header(rng)
        text = json.dumps(header).encode()
        files.append(struct.pack("<Q", len(text)) + text + bytes(data_bytes))
    verdicts = our_verdicts(files, tmp_path)
    for file, verdict in zip(files, verdicts):
        assert verdict == "yes", (verdict, file)
        assert reference_accepts(file), file
