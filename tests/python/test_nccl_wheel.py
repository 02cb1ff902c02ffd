"""Goal: what libckpt calls and declares of NCCL is there, in the library and the header of the
wheel that brings NCCL to PyTorch; and that library loads where no GPU is.

Method: the wheel from where pip finds it. A download of 200 MB is left to the full run; the quick
one takes it from an index on this machine's disk, if there is one.
"""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

BUILD = pathlib.Path(os.environ.get("CKPT_BUILD", "build/dev")).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEEL = "nvidia-nccl-cu13==2.30.7"
PARTS = ("nvidia/nccl/lib/libnccl.so.2", "nvidia/nccl/include/nccl.h")
EMPTY_HEADERS = ("cuda_runtime.h", "cuda_fp16.h")  # The toolkit's, of which nothing is needed.


def unpacked(directory, *options):
    """The library and the header, or skips."""
    got = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options,
         "--dest", directory, WHEEL],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if got.returncode != 0:
        pytest.skip(f"no wheel of NCCL can be had: {got.stderr.splitlines()[-1:]}")
    wheel = next(directory.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        library, header = (pathlib.Path(archive.extract(part, directory)) for part in PARTS)
    wheel.unlink()
    return library, header


def check(directory, *options):
    library, header = unpacked(directory, *options)
    environment = os.environ | {"CKPT_NCCL_LIBRARY": str(library)}
    script = ROOT / "tests/capture/nccl_symbols.sh"
    said = subprocess.run(["bash", script], env=environment, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    assert "has all 12 functions" in said.stdout
    version = ctypes.c_int()
    assert ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(version)) == 0
    assert version.value == 23007
    compare_declarations(directory, header)
    shutil.rmtree(directory / "nvidia")


def compare_declarations(directory, header):
    for name in EMPTY_HEADERS:
        (directory / name).touch()
    places = (ROOT / "libckpt", ROOT / "libckpt/include", BUILD / "libckpt/include", header.parent,
              directory)  # fmt: skip
    said = subprocess.run(
        ["/usr/bin/c++", "-std=c++20", "-fsyntax-only", *(f"-I{place}" for place in places),
         ROOT / "tests/capture/nccl_header_check.cpp"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr


def test_it_is_as_we_call_it_where_no_download_is_needed(tmp_path):
    check(tmp_path, "--index-url", (tmp_path / "no index").as_uri())


@pytest.mark.slow
def test_it_is_as_we_call_it(tmp_path):
    check(tmp_path)
