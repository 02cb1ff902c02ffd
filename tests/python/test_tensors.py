"""Goal: every kind of tensor comes back right, or is refused with a message that names it.

Method: tensors of all types, shapes and layouts are saved, overwritten with other bytes, restored
from the daemon's memory and compared with copies made before, byte by byte.
"""

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import libckpt  # noqa: E402

TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
    torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    *([torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []),  # Since torch 2.7.
]  # fmt: skip
SHAPES = [(), (0,), (3, 0), (1,), (17, 3), (1024,), (1025, 1024)]


def bytes_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def some(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = torch.empty(shape, dtype=dtype).nbytes
    content = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), generator=generator)
    return content.to(torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_and_shape_comes_back(job, dtype):
    tensors = {str(shape): some(dtype, shape) for shape in SHAPES}
    expected = {name: bytes_of(tensor) for name, tensor in tensors.items()}
    session = job()
    session.save(1, {"tensors": tensors}).captured.result(30)
    for tensor in tensors.values():
        tensor.copy_(some(dtype, tensor.shape, seed=1))

    restored = session.restore({"tensors": tensors}).items["tensors"]
    assert {name: bytes_of(tensor) for name, tensor in restored.items()} == expected
    assert all(tensor.dtype == dtype for tensor in restored.values())
    assert [str(tuple(tensor.shape)) for tensor in restored.values()] == list(restored)


ALL_TYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_each_type_that_this_torch_has_comes_back(job, is_guarded):
    """Those of few bits and the quantised ones too, of which torch can do little but move them."""
    bytes_by_type, tensors = {}, {}
    for seed, (name, dtype) in enumerate(ALL_TYPES.items()):
        content = torch.bool if dtype == torch.bool else torch.uint8
        raw = some(content, (1 << 14,), seed).view(torch.uint8)
        bytes_by_type[name] = raw
        tensors[name] = torch.nn.Parameter(raw.view(dtype), requires_grad=False)
    assert {"torch.complex32", "torch.float8_e4m3fn", "torch.qint8"} <= tensors.keys()
    expected = {name: raw.clone() for name, raw in bytes_by_type.items()}
    session = job()
    optimizer = torch.optim.SGD(tensors.values(), lr=0.1)
    if is_guarded:
        session.guard(optimizer)
    ticket = session.save(1, {"tensors": tensors})
    optimizer.step()
    for raw in bytes_by_type.values():
        raw.zero_()
    ticket.captured.result(30)
    session.restore({"tensors": tensors})
    for name, raw in bytes_by_type.items():
        assert torch.equal(raw, expected[name]), name
    made = session.restore().items["tensors"]
    assert all(made[name].dtype == dtype for name, dtype in ALL_TYPES.items())
    assert all(torch.equal(made[name].view(torch.uint8), expected[name]) for name in expected)


def test_a_tensor_is_restored_where_it_is(job):
    tensor = some(torch.float32, (33, 7))
    expected, address = bytes_of(tensor), tensor.data_ptr()
    session = job()
    session.save(1, {"tensor": tensor}).captured.result(30)
    tensor.zero_()
    session.restore({"tensor": tensor})
    assert bytes_of(tensor) == expected
    assert tensor.data_ptr() == address


@pytest.mark.parametrize(
    "make",
    [
        lambda base: base.t(),
        lambda base: base[::2, 1::3],
        lambda base: base[3:5],
        lambda base: base.expand(4, 64, 32),
        lambda base: torch.view_as_complex(base.view(64, 16, 2)).conj(),
    ],
    ids=["transposed", "strided", "slice", "expanded", "conjugated"],
)
def test_views_come_back_with_their_values(job, make):
    view = make(some(torch.int16, (64, 32)).to(torch.float32))
    expected = view.clone()
    session = job()
    session.save(1, {"view": [view]}).captured.result(30)
    assert torch.equal(session.restore().items["view"][0], expected)


def test_a_view_that_is_not_contiguous_is_written_back_in_place(job):
    base = some(torch.int32, (8, 6))
    view = base.t()
    expected = base.clone()
    session = job()
    session.save(1, {"view": view}).captured.result(30)
    base.zero_()
    session.restore({"view": view})
    assert torch.equal(base, expected)


def test_tied_tensors_are_stored_once_and_come_back_tied(job, tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(1000, 64)
            self.head = torch.nn.Linear(64, 1000, bias=False)
            self.head.weight = self.embedding.weight

    module = Tied()
    expected = module.head.weight.detach().clone()
    session = job(dir=tmp_path / "dir", save_storage_interval=1)
    session.save(1, {"module": module}).durable.result(60)
    with torch.no_grad():
        module.head.weight.zero_()
    session.restore({"module": module})
    assert torch.equal(module.embedding.weight, expected)
    assert module.head.weight is module.embedding.weight
    file = tmp_path / "dir" / "step-000000001" / "rank-00000.safetensors"
    assert file.stat().st_size < 1.5 * expected.nbytes


def test_numpy_arrays_come_back(job):
    arrays = {
        "f8": numpy.arange(7.0),
        "order": numpy.asfortranarray(numpy.arange(12).reshape(3, 4)),
        "big-endian": numpy.arange(5, dtype=">i4"),
        "text": numpy.array(["a", "bcd"]),
        "date": numpy.array(["2026-01-01"], dtype="datetime64[D]"),
        "scalar": numpy.float32(1.5),
        "empty": numpy.empty((0, 3), dtype=numpy.complex128),
    }
    session = job()
    session.save(1, {"arrays": arrays}).captured.result(30)
    restored = session.restore().items["arrays"]
    for name, array in arrays.items():
        assert restored[name].dtype == array.dtype, name
        assert numpy.array_equal(restored[name], array), name


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: torch.eye(3).to_sparse(), "to_dense"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "int_repr"),
        (lambda: torch.empty(3, device="meta"), "move it to cpu"),
        (lambda: numpy.array([object()]), "Python objects"),
    ],
    ids=["sparse", "quantised", "meta", "objects"],
)
def test_a_tensor_that_cannot_be_saved_is_refused_by_name_with_advice(job, make, advice):
    with pytest.raises(libckpt.Unsupported, match=r'"model\.odd".*' + advice):
        job().save(1, {"model": {"odd": make()}})
