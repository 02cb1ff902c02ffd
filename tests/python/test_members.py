"""Goal: what becomes a file for torch.load is one that stock torch opens like its own.

Method: states of every kind are saved as members through a real daemon; the files are checked by
zipfile, opened by stock torch in all its ways, and compared with what torch itself writes.
"""

import io
import json
import struct
import zipfile

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402


def optimizer_state():
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    model(torch.ones(2, 40)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def contents():
    base = torch.arange(10_000.0)
    return {
        "optimizer": optimizer_state(),
        "views": {"all": base, "part": base[5000:6000], "steps": base[::7],
                  "t": base.view(100, 100).t()},
        "types": [torch.ones(3, dtype=t) for t in (torch.bfloat16, torch.float8_e4m3fn, torch.bool,
                                                   torch.complex128, torch.uint16)],
        "empty": {"zero": torch.empty(0), "scalar": torch.tensor(5), "nothing": {}},
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "plain": {"epoch": 3, "nested": [1.5, ("a", None)]},
    }  # fmt: skip


@pytest.fixture
def saved(job, tmp_path):
    def save(members):
        session = job(dir=tmp_path / "dir", save_storage_interval=1)
        session.save(1, {name: libckpt.TorchMember(part) for name, part in members.items()})
        session.wait(1, "durable", 60)
        step = tmp_path / "dir" / "step-000000001"
        from libckpt.core.files import _storage

        return session, _storage.files_of(step)[0]

    return save


def is_same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(
            one.contiguous().view(-1).view(torch.uint8) if one.numel() else one,
            other.contiguous().view(-1).view(torch.uint8) if other.numel() else other,
        )  # fmt: skip
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and one == other


def test_stock_torch_opens_each_member_as_its_own(saved):
    members = contents()
    _, files = saved(members)
    assert files.keys() == members.keys()
    for name, content in members.items():
        stock = io.BytesIO()
        torch.save(content, stock)
        stock.seek(0)
        expected = torch.load(stock, weights_only=True)
        for options in ({"weights_only": True}, {"weights_only": False}, {"mmap": True}):
            found = torch.load(files[name], **options)
            assert is_same(found, expected), (name, options)


def test_views_of_one_storage_are_stored_once_and_stay_views(saved):
    base = torch.arange(100_000.0)
    _, files = saved({"x": [base, base[10:20]]})
    assert files["x"].stat().st_size < 1.2 * base.nbytes
    whole, part = torch.load(files["x"])
    part.zero_()
    assert whole[10:20].sum() == 0


def test_zip_readers_find_no_fault_and_data_begins_on_pages(saved):
    _, files = saved(contents())
    for file in files.values():
        archive = zipfile.ZipFile(file)
        assert archive.testzip() is None
        raw = file.read_bytes()
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            lengths = struct.unpack_from("<HH", raw, entry.header_offset + 26)
            begin = entry.header_offset + 30 + sum(lengths)
            assert begin % (4096 if entry.file_size >= 4096 else 64) == 0, entry.filename


def test_a_large_member_can_be_mapped(saved):
    _, files = saved({"large": torch.arange(3_000_000)})
    found = torch.load(files["large"], mmap=True)
    assert torch.equal(found, torch.arange(3_000_000))


def test_members_come_back_from_memory_into_their_objects(job):
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    items = {"model.pt": libckpt.TorchMember(model), "opt.pt": libckpt.TorchMember(optimizer)}
    session = job()
    session.save(1, items).captured.result(30)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    moments = optimizer.state[model.weight]["exp_avg"].clone()
    optimizer.step()
    restored = session.restore(items)
    assert all(map(torch.equal, model.parameters(), expected))
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moments)
    assert restored.items["opt.pt"]["param_groups"][0]["lr"] == 1e-3


def test_the_manifest_names_members_so_that_anyone_finds_their_files(saved):
    _, files = saved({"optimizer.pt": {"a": 1}})
    manifest = json.loads((files["optimizer.pt"].parent / "manifest.json").read_text())
    kinds = {member["file"]: member["kind"] for member in manifest["shards"][0]["members"]}
    assert kinds[files["optimizer.pt"].name] == "torch"


def test_an_object_that_cannot_be_pickled_is_refused_by_name(job):
    with pytest.raises(libckpt.InvalidArgument, match=r'"x\.pt" is a dict and cannot be pickled'):
        job(allow_pickle=True).save(1, {"x.pt": libckpt.TorchMember({"f": lambda: 0})})
