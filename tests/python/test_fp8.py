"""Goal: tensors of 8-bit floats come through each door of torch bit for bit.

Method: all 256 values of each type, NaNs among them, are saved and read again in every way there
is. JAX's have their tests in test_jax.py, distributed ones in test_dcp.py.
"""

import json
import os

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402

KINDS = [torch.float8_e4m3fn, torch.float8_e5m2]


def all_values(kind):
    return torch.arange(256, dtype=torch.uint8).view(kind).reshape(16, 16)


def bits(state):
    return {name: (tensor.dtype, tensor.view(torch.uint8).tolist())
            for name, tensor in state.items()}  # fmt: skip


class Quantized(torch.nn.Module):
    """A frozen layer in fp8 with its scale, and one that is trained."""

    def __init__(self, fill=True):
        super().__init__()
        for kind in KINDS:
            values = all_values(kind) if fill else torch.zeros(16, 16, dtype=kind)
            name = str(kind).rpartition("_")[2]
            setattr(self, name, torch.nn.Parameter(values, requires_grad=False))
        self.register_buffer("amax", all_values(KINDS[1])[0].clone())
        self.head = torch.nn.Linear(16, 1)

    def fp8(self):
        return {name: part for name, part in self.state_dict().items() if part.dtype in KINDS}


def test_a_module_is_restored_in_place_beside_training(job):
    session, model = job(), Quantized()
    optimizer = torch.optim.AdamW(model.head.parameters())
    session.guard(optimizer)
    model.head(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    expected = bits(model.fp8())
    session.save(1, {"model": model, "optimizer": optimizer}).captured.result(60)
    with torch.no_grad():
        for part in model.fp8().values():
            part.view(torch.uint8).zero_()
    addresses = [part.data_ptr() for part in model.fp8().values()]
    session.restore({"model": model, "optimizer": optimizer})
    assert bits(model.fp8()) == expected
    assert [part.data_ptr() for part in model.fp8().values()] == addresses


def test_from_storage_a_new_module_a_dictionary_and_a_tool_read_it(job, tmp_path, ckpt):
    model = Quantized()
    session = job(dir=tmp_path / "dir", save_storage_interval=1)
    session.save(1, {"model": model}).durable.result(60)
    session.close()
    fresh = Quantized(fill=False)
    assert libckpt.load_checkpoint(tmp_path / "dir", {"model": fresh}).step == 1
    assert bits(fresh.fp8()) == bits(model.fp8())
    found = libckpt.load_checkpoint(tmp_path / "dir").items["model"]
    assert bits({name: found[name] for name in model.fp8()}) == bits(model.fp8())
    told = json.loads(ckpt("inspect", tmp_path / "dir", "--json"))
    assert "F8_E4M3" in json.dumps(told)


@pytest.mark.parametrize("form", ["safetensors", "torch", "dcp"])
def test_an_export_has_it(job, tmp_path, ckpt, form):
    model = Quantized()
    session = job(dir=tmp_path / "dir", save_storage_interval=1)
    session.save(1, {"model": model}).durable.result(60)
    session.close()
    target = tmp_path / f"out.{form}"
    ckpt("export", tmp_path / "dir", target, "--format", form)
    found = read_export(target, form, model)
    assert bits({name: found[f"model.{name}"] for name in model.fp8()}) == bits(model.fp8())


def read_export(target, form, model):
    if form == "safetensors":
        return pytest.importorskip("safetensors.torch").load_file(target)
    if form == "torch":
        return torch.load(target, weights_only=True)
    import torch.distributed.checkpoint as dcp

    found = {f"model.{name}": torch.zeros_like(part) for name, part in model.fp8().items()}
    dcp.load(found, checkpoint_id=target)
    return found


def test_dcp_saves_it_to_memory_and_to_a_folder(runtime, tmp_path):
    import torch.distributed.checkpoint as dcp

    import libckpt.dcp

    model, storage = Quantized(), libckpt.dcp.Storage("job")
    in_memory = "ckpt://job/step-1"
    for checkpoint_id in (in_memory, str(tmp_path / "folder")):
        dcp.save(model.state_dict(), storage_writer=storage, checkpoint_id=checkpoint_id)
        found = Quantized(fill=False).state_dict()
        dcp.load(found, storage_reader=storage, checkpoint_id=checkpoint_id)
        assert bits({name: found[name] for name in model.fp8()}) == bits(model.fp8())
    stock = Quantized(fill=False).state_dict()
    dcp.load(stock, checkpoint_id=str(tmp_path / "folder"))
    assert bits({name: stock[name] for name in model.fp8()}) == bits(model.fp8())
    storage.session(in_memory).abandon()  # Another test's job has its name.
    storage.close()
    assert sorted(os.listdir(tmp_path / "folder")) == [".metadata", "__0_0.distcp"]


def test_a_plain_loop_publishes_it(runtime, tmp_path):
    import libckpt.torch

    with libckpt.torch.checkpoint(tmp_path / "out", step=1) as folder:
        folder.save(Quantized().state_dict(), "model.pt")
    libckpt.torch.wait()
    found = torch.load(tmp_path / "out" / "model.pt")
    assert bits({name: found[name] for name in Quantized().fp8()}) == bits(Quantized().fp8())
