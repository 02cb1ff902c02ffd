"""Goal: what `ckpt export` writes is what stock safetensors and torch load, whichever ranks saved.

Method: real ranks save a model with tied, permuted, empty and half-precision tensors; the command
puts it together, and the reference readers open the result.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")

from safetensors.torch import load_file, load_model  # noqa: E402
from trainers.exported import Model  # noqa: E402

PROGRAM = pathlib.Path(__file__).parent / "trainers" / "exported.py"
LOADER = PROGRAM.with_name("dcp_loaded.py")
SECONDS_MAX = 240


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """By kind, the directory of a job that saved one step, with what it saved as torch has it."""
    import libckpt

    programs = pathlib.Path(libckpt.__file__).parent / "bin"
    directories = {}
    for kind, ranks in (("plain", 1), ("fsdp", 2)):
        place = tmp_path_factory.mktemp(kind)
        environment = {
            **os.environ, "LIBCKPT_RUNTIME_DIR": str(place / "runtime"), "OMP_NUM_THREADS": "1",
            "LIBCKPT_DAEMON_PATH": str(programs / "ckptd"), "LIBCKPT_NICE": "0",
        }  # fmt: skip
        try:
            save(kind, ranks, place / "job", environment)
        finally:
            subprocess.run([programs / "ckpt", "stop", "--no-flush"], env=environment, timeout=60,
                           capture_output=True, check=False)  # fmt: skip
        directories[kind] = place
    return directories


def run(ranks, command, environment):
    """A program that forks its ranks."""
    done = subprocess.run([sys.executable, *command, str(ranks)], env=environment,
                          timeout=SECONDS_MAX, check=False)  # fmt: skip
    assert done.returncode == 0


def save(kind, ranks, directory, environment):
    directory.mkdir()
    run(ranks, [PROGRAM, kind, directory, "8", "3"], environment)


@pytest.fixture
def ckpt(programs):
    def run(*arguments, code=0):
        ran = subprocess.run([programs / "ckpt", *map(str, arguments)], capture_output=True,
                             text=True, timeout=120, check=False)  # fmt: skip
        assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
        return ran.stdout if code == 0 else ran.stdout + ran.stderr

    return run


def assert_same(loaded, expected, without=()):
    assert loaded.keys() == expected.keys() - set(without)
    for name, tensor in loaded.items():
        other = expected[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        assert torch.equal(tensor, other), name


@pytest.mark.parametrize("kind", ["plain", "fsdp"])
def test_one_file_is_what_load_state_dict_takes(saved, tmp_path, ckpt, kind):
    expected = torch.load(saved[kind] / "whole.pt")
    out = tmp_path / "model.safetensors"
    said = ckpt("export", saved[kind] / "job", out, "--names", "model.*", "--strip", "model.")
    assert "tied: head.weight is embed.weight" in said
    loaded = load_file(out)
    assert_same(loaded, expected, without=["head.weight"])
    with safetensors.safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    model = Model()
    missing = model.load_state_dict(loaded, strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["head.weight"], [])
    assert_same(model.state_dict(), expected)
    other = Model()
    load_model(other, out)  # The reference knows tied tensors, and misses nothing.
    assert_same(other.state_dict(), expected)

    both = tmp_path / "both.safetensors"
    ckpt("export", saved[kind] / "job", both, "--strip", "model.", "--copy-tied")
    strict = Model()
    strict.load_state_dict(load_file(both))
    assert_same(strict.state_dict(), expected)


@pytest.mark.parametrize("kind", ["plain", "fsdp"])
def test_a_torch_file_is_loaded_without_running_a_pickle(saved, tmp_path, ckpt, kind):
    expected = torch.load(saved[kind] / "whole.pt")
    out = tmp_path / "model.pt"
    ckpt("export", saved[kind] / "job", out, "--format", "torch", "--strip", "model.")
    loaded = torch.load(out, weights_only=True)
    assert_same(loaded, expected)
    storages = [loaded[name].untyped_storage() for name in ("head.weight", "embed.weight")]
    assert storages[0].data_ptr() == storages[1].data_ptr()
    mapped = torch.load(out, weights_only=True, mmap=True)
    assert_same(mapped, expected)
    model = Model()
    model.load_state_dict(loaded)
    assert_same(model.state_dict(), expected)


@pytest.mark.parametrize(("kind", "ranks"), [("plain", 2), ("fsdp", 1), ("fsdp", 3)])
def test_a_folder_for_dcp_is_loaded_by_stock_torch_in_any_world(saved, tmp_path, ckpt, kind, ranks):
    out = tmp_path / "dcp"
    arguments = saved[kind] / "job", out, "--format", "dcp", "--strip", "model."
    told = json.loads(ckpt("export", *arguments, "--json"))
    assert told["tied"] == {"head.weight": "embed.weight"}
    assert sorted(path.name for path in out.iterdir()) == [".metadata", "__0_0.distcp"]
    command = [LOADER, out, saved[kind] / "whole.pt"]
    run(ranks, command, {**os.environ, "OMP_NUM_THREADS": "1"})

    assert "--force" in ckpt("export", *arguments, code=2)
    (out / "__7_0.distcp").write_bytes(b"of another one")
    ckpt("export", *arguments, "--force")
    assert sorted(path.name for path in out.iterdir()) == [".metadata", "__0_0.distcp"]


def test_the_number_of_ranks_leaves_no_trace(saved, tmp_path, ckpt):
    for kind in saved:
        ckpt("export", saved[kind] / "job" / "step-000000008", tmp_path / kind, "--strip", "model.")
        ckpt("export", saved[kind] / "job", tmp_path / f"{kind}-dcp", "--format", "dcp")
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "fsdp").read_bytes()
    for name in (".metadata", "__0_0.distcp"):
        one, other = (tmp_path / f"{kind}-dcp" / name for kind in ("plain", "fsdp"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("kind", ["plain", "fsdp"])
def test_files_of_hugging_face_are_read_by_their_index(saved, tmp_path, ckpt, kind):
    expected = torch.load(saved[kind] / "whole.pt")
    out = tmp_path / "hf"
    told = json.loads(ckpt("export", saved[kind] / "job", out, "--format", "hf", "--json",
                           "--strip", "model.", "--max-shard-size", "1KB"))  # fmt: skip
    assert told["tied"] == {"head.weight": "embed.weight"}
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in out.glob("*.safetensors"))
    count = len(files)
    assert count > 2
    assert files == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    assert sorted(set(index["weight_map"].values())) == files
    loaded = {}
    for file in files:
        tensors = load_file(out / file)
        assert all(index["weight_map"][name] == file for name in tensors)
        assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= 1000
        loaded |= tensors
    assert_same(loaded, expected, without=["head.weight"])
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in loaded.values())
    assert sorted(path.name for path in out.iterdir()) == [*files, "model.safetensors.index.json"]


def test_the_loader_of_hugging_face_takes_the_folder(saved, tmp_path, ckpt):
    hub = pytest.importorskip("huggingface_hub", minversion="0.27")
    for size in ("1KB", "5GB"):  # Several files, and one without an index.
        out = tmp_path / size
        ckpt("export", saved["fsdp"] / "job", out, "--strip", "model.", "--format", "hf",
             "--max-shard-size", size, "--copy-tied")  # fmt: skip
        model = Model()
        hub.load_torch_model(model, out, strict=True)
        assert_same(model.state_dict(), torch.load(saved["fsdp"] / "whole.pt"))


def test_stock_torch_consolidates_the_files_of_ranks(saved, tmp_path):
    """As users do with files of DCP's writer for Hugging Face, and without libckpt."""
    stock = pytest.importorskip("torch.distributed.checkpoint._consolidate_hf_safetensors")
    expected = torch.load(saved["fsdp"] / "whole.pt")
    step = saved["fsdp"] / "job" / "step-000000008"
    names = {f"model.{name}": name for name in expected if name.startswith(("layers.", "embed."))}
    for rank in range(2):
        with safetensors.safe_open(step / f"rank-0000{rank}.safetensors", framework="pt") as file:
            assert names.keys() <= set(file.keys())
    stock.consolidate_safetensors_files(str(step), str(tmp_path), dict.fromkeys(names, 1))
    loaded = load_file(tmp_path / "model-00001-of-00001.safetensors")
    assert_same({names[name]: tensor for name, tensor in loaded.items()},
                {name: expected[name] for name in names.values()})  # fmt: skip


def test_a_gap_and_damage_are_named_and_leave_nothing(saved, tmp_path, ckpt):
    broken = tmp_path / "broken"
    shutil.copytree(saved["fsdp"] / "job" / "step-000000008", broken)
    file = broken / "rank-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    out = tmp_path / "out"
    said = ckpt("export", saved["fsdp"] / "job", out / "model.safetensors", code=2)
    assert str(out) in said  # There is no such directory.
    out.mkdir()
    said = ckpt("export", broken, out / "model.safetensors", "--strip", "model.", code=1)
    assert "rank-00001.safetensors" in said
    file.unlink()
    said = ckpt("export", broken, out / "model.safetensors", "--strip", "model.", code=1)
    assert "rank-00001.safetensors" in said
    assert list(out.iterdir()) == []


def test_inspect_and_diff_know_both(saved, ckpt):
    told = json.loads(ckpt("inspect", saved["fsdp"] / "job", "--names", "model.*", "--json"))
    tensors = {tensor["name"]: tensor for tensor in told["tensors"]}
    assert tensors["model.head.weight"]["tied_to"] == "model.embed.weight"
    parts = tensors["model.half.weight"]["parts"]
    assert [(part["rank"], part["offset"], part["shape"]) for part in parts] == [
        (0, [0, 0], [4, 6]), (1, [4, 0], [3, 6]),
    ]  # fmt: skip
    assert (tensors["model.half.weight"]["dtype"], parts[0]["global_shape"]) == ("BF16", [7, 6])
    arguments = saved["plain"] / "job", saved["fsdp"] / "job", "--names", "model.*"
    assert "all the same" in ckpt("diff", *arguments)
