"""Goal: a tree of jax arrays comes back bit for bit, on any mesh, with any number of processes,
after any death; and saving it hurts no training.

Method: trees on four devices of one process, compared with numpy; a training in processes of its
own, in one and in two over jax.distributed, that is killed and compared step by step with one that
was left alone.
"""

import datetime
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest

DEVICES = "--xla_force_host_platform_device_count="
os.environ["XLA_FLAGS"] = f"{DEVICES}4"  # Before the first use of JAX.
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import libckpt  # noqa: E402
import libckpt.jax  # noqa: E402
from libckpt.adapters.jax import _coordinator  # noqa: E402
from libckpt.jax import _exchange  # noqa: E402
from trainers import ports  # noqa: E402

TRAINERS = pathlib.Path(__file__).parent / "trainers"
SECONDS_MAX = 300  # Only so that one that hangs ends.
TYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4",
         "uint4", "int8", "uint32", "bool", "complex64", "float8_e4m3b11fnuz")  # fmt: skip


def mesh(*shape):
    devices = numpy.array(jax.devices()[: int(numpy.prod(shape))]).reshape(shape)
    return Mesh(devices, ("a", "b", "c")[: len(shape)])


def put(value, on, *axes):
    return jax.device_put(value, NamedSharding(on, PartitionSpec(*axes)))


def bits(leaf):
    """The facts that two leaves must share to be the same."""
    if isinstance(leaf, jax.Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return str(jax.random.key_impl(leaf)), *bits(jax.random.key_data(leaf))
        leaf = numpy.asarray(leaf)
    if isinstance(leaf, (numpy.ndarray, numpy.generic)):
        return leaf.dtype, leaf.shape, leaf.tobytes()
    return type(leaf), leaf


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.tree.map(bits, found) == jax.tree.map(bits, expected)


def abstract(tree):
    def one(leaf):
        is_array = isinstance(leaf, jax.Array)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) if is_array \
            else leaf  # fmt: skip

    return jax.tree.map(one, tree)


@pytest.fixture
def open_job(runtime):
    opened = []

    def open_one(name="job", *arguments, **options):
        options.setdefault("raise_on_error", True)
        opened.append(libckpt.jax.Checkpointer(name, *arguments, **options))
        return opened[-1]

    yield open_one
    for checkpointer in opened:
        checkpointer.session.abandon()


def save(checkpointer, step, tree, level="committed"):
    """Returns the step, which is a later one if there were no Slots of that size yet."""
    ends = time.monotonic() + SECONDS_MAX
    while not (ticket := checkpointer.save(step, tree, wait=60)):  # Slots of another size come.
        assert ticket.outcome == "skipped_unavailable", ticket
        assert time.monotonic() < ends
        step += 1
    getattr(ticket, level).result()
    return step


def die(checkpointer):
    checkpointer.session.abandon()


def lose_memory(programs):
    subprocess.run([programs / "ckpt", "stop", "--no-flush"], check=True, timeout=60,
                   capture_output=True)  # fmt: skip


def all_kinds(on, first, second):
    """A tree with an array of each type, and all that is no array."""
    numbers = numpy.random.default_rng(3).integers(0, 2, (8, 4))
    tree = {name: put(jnp.asarray(numbers).astype(name), on, first, second) for name in TYPES}
    tree["one"] = put(jnp.float32(7), on)
    tree["none"] = put(jnp.zeros((0, 4)), on, first)
    tree["key"] = jax.random.key(5)
    tree["keys"] = put(jax.random.split(jax.random.key(6, impl="rbg"), 8), on, first)
    tree["plain"] = [3, 0.1, float("inf"), "text", None, True, (1, 2), numpy.arange(3),
                     numpy.float64(2.5), numpy.ones(2, jnp.bfloat16)]  # fmt: skip
    return tree


def test_a_restore_that_names_no_step_is_said_to_take_the_newest(open_job, capfd):
    checkpointer, tree = open_job(), {"w": jnp.ones(4)}
    save(checkpointer, 3, tree)
    assert checkpointer.restore(tree).step == 3
    told = re.findall(r"restored step 3 .*", capfd.readouterr().err)
    assert told
    assert all("the newest that all ranks can have" in line for line in told), told


@pytest.mark.parametrize("shape", [(2, 2), (4,), (1,), (2, 1)])
def test_all_types_come_back_on_any_mesh(open_job, shape):
    tree = all_kinds(mesh(2, 2), "a", "b")
    checkpointer = open_job()
    save(checkpointer, 1, tree)
    die(checkpointer)
    second, first = (("a", "b")[: len(shape)] + (None,))[:2]
    wanted = abstract(all_kinds(mesh(*shape), first, second))
    restored = open_job().restore(wanted)
    assert (restored.step, restored.source, restored.world_size) == (1, "own_memory", 1)
    assert_same(restored.tree, tree)
    for found, asked in zip(jax.tree.leaves(restored.tree), jax.tree.leaves(wanted), strict=True):
        assert getattr(found, "sharding", None) == getattr(asked, "sharding", None)


def test_any_sharding_comes_back_on_any_other_as_numpy_cuts_it(open_job, programs):
    chance = random.Random(7)
    meshes = [mesh(4), mesh(2, 2), mesh(2), mesh(1), mesh(1, 4)]

    def any_sharding(shape):
        on = chance.choice(meshes)
        axes = chance.sample(on.axis_names, len(on.axis_names))
        groups = [[] for _ in shape]
        for axis in axes if shape else ():
            chance.choice([*groups, []]).append(axis)
        return NamedSharding(on, PartitionSpec(*(tuple(group) or None for group in groups)))

    shapes = [tuple(4 * chance.randint(0, 3) for _ in range(chance.randint(0, 3)))
              for _ in range(12)]  # fmt: skip
    checkpointer = open_job()
    step = 0
    for seed in range(12):
        values = {str(i): numpy.random.default_rng(seed).standard_normal(shape).astype("f4")
                  for i, shape in enumerate(shapes)}  # fmt: skip
        tree = {n: jax.device_put(v, any_sharding(v.shape)) for n, v in values.items()}
        step = save(checkpointer, step + 1, tree)
        like = {name: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=any_sharding(v.shape))
                for name, v in values.items()}  # fmt: skip
        restored = checkpointer.restore(like)
        assert restored.step == step
        for name, value in values.items():
            found = restored.tree[name]
            assert found.sharding == like[name].sharding
            for shard in found.addressable_shards:
                assert numpy.array_equal(numpy.asarray(shard.data), value[shard.index])


def test_a_step_that_donates_its_state_right_after_a_save_changes_no_captured_byte(open_job):
    checkpointer = open_job()
    step_of = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = step_of([put(numpy.zeros((1 << 20, 4), numpy.float32), mesh(4), "a")])
    number = 1
    for step in range(1, 7):
        state, number = step_of(state), number + 1  # May still be running when it is saved.
        ticket = checkpointer.save(step, state, wait=60)
        assert ticket, ticket
        state = step_of(step_of(state))  # It takes other memory: there is a view of this one.
        ticket.committed.result()
        found = checkpointer.restore([numpy.empty((1 << 20, 4), numpy.float32)])
        assert found.step == step
        assert (found.tree[0] == number).all()
        number += 2


def test_a_save_holds_no_memory_once_its_bytes_are_copied(open_job):
    checkpointer = open_job(save_mem_interval=10)
    step_of = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = step_of([put(numpy.zeros((1 << 20, 4), numpy.float32), mesh(4), "a")])
    checkpointer.prepare(state)
    checkpointer.save_checkpoint_if_needed(10, state).captured.result()
    places = [shard.data.unsafe_buffer_pointer() for shard in state[0].addressable_shards]
    assert checkpointer.save_checkpoint_if_needed(11, state).outcome == "not_due"
    state = step_of(state)  # JAX takes no donation, without a word, while there is a view.
    assert places == [s.data.unsafe_buffer_pointer() for s in state[0].addressable_shards]


def test_restored_arrays_may_be_donated(open_job):
    checkpointer = open_job()
    tree = {"all": put(numpy.arange(1 << 18, dtype=numpy.float32), mesh(4)),
            "part": put(numpy.arange(1 << 18, dtype=numpy.float32), mesh(4), "a")}  # fmt: skip
    save(checkpointer, 1, tree)
    found = checkpointer.restore(tree).tree
    step_of = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    found = step_of(step_of(found))
    for name, array in found.items():
        for shard in array.addressable_shards:  # Copies that share memory are counted up once.
            expected = numpy.asarray(tree[name])[shard.index] + 2
            assert numpy.array_equal(numpy.asarray(shard.data), expected)


def test_storage_has_each_cell_by_a_name_that_tells_where_it_lies(
    open_job, programs, ckpt, tmp_path
):
    safetensors = pytest.importorskip("safetensors.numpy")
    whole = numpy.arange(32, dtype=numpy.float32).reshape(8, 4)
    tree = {"params": {"w": put(whole, mesh(2, 2), "a", "b"), "b": put(whole[0], mesh(2, 2))}}
    checkpointer = open_job("job", tmp_path / "dir", save_storage_interval=1)
    save(checkpointer, 3, tree, "durable")
    checkpointer.wait_until_finished()
    assert "missing" not in ckpt("status")
    die(checkpointer)
    lose_memory(programs)
    (file,) = (tmp_path / "dir").rglob("rank-00000.safetensors")
    stored = safetensors.load_file(file)
    assert sorted(stored) == ["params.b", "params.w[0:4,0:2]", "params.w[0:4,2:4]",
                              "params.w[4:8,0:2]", "params.w[4:8,2:4]"]  # fmt: skip
    assert numpy.array_equal(stored["params.w[4:8,0:2]"], whole[4:8, :2])
    ckpt("export", tmp_path / "dir", tmp_path / "all.safetensors")
    exported = safetensors.load_file(tmp_path / "all.safetensors")
    assert numpy.array_equal(exported["params.w"], whole)
    assert numpy.array_equal(exported["params.b"], whole[0])
    like = {"params": {"w": put(0 * whole, mesh(4), None, "a"), "b": whole[0] * 0}}
    restored = open_job("job", tmp_path / "dir").restore(like)
    assert (restored.step, restored.source) == (3, "storage")
    assert numpy.array_equal(numpy.asarray(restored.tree["params"]["w"]), whole)
    assert numpy.array_equal(restored.tree["params"]["b"], whole[0])


def test_a_part_of_the_tree_can_be_restored_and_what_is_left_is_told(open_job, caplog):
    tree = {"params": put(numpy.ones((4, 4), "f4"), mesh(4), "a"), "optimizer": jnp.zeros(3)}
    checkpointer = open_job()
    save(checkpointer, 1, tree)
    restored = checkpointer.restore({"params": tree["params"]})
    assert_same(restored.tree, {"params": tree["params"]})
    assert 'the checkpoint also has "optimizer"' in caplog.text


def test_room_that_was_prepared_takes_the_first_save(open_job):
    tree = {"w": put(numpy.ones((1 << 20, 4), "f4"), mesh(4), "a"), "n": 3}
    checkpointer = open_job()
    checkpointer.prepare(tree)
    ticket = checkpointer.save(1, tree)  # It waits for nothing.
    assert ticket, ticket
    ticket.committed.result()
    assert_same(checkpointer.restore(tree).tree, tree)


def test_an_array_that_lay_anywhere_goes_to_any_device_again(open_job):
    tree = {"w": put(numpy.ones((4, 4), "f4"), mesh(4), "a"), "count": jnp.int32(3),
            "key": jax.random.key(1)}  # fmt: skip
    checkpointer = open_job()
    save(checkpointer, 1, tree)
    like = [tree, {**abstract(tree), "count": jax.ShapeDtypeStruct((), "int32"),
                   "key": jax.eval_shape(lambda: tree["key"])}]  # fmt: skip
    for each in like:
        found = checkpointer.restore(each).tree
        assert not found["count"].committed
        assert not found["key"].committed
        # JAX refuses to compute with arrays that were put on different sets of devices.
        sum_of = jax.jit(lambda t: t["w"] + t["count"] + jax.random.bits(t["key"]))
        assert (sum_of(found) >= 4).all()


def test_arrays_come_back_to_the_kind_of_memory_that_they_were_in(open_job):
    on_host = NamedSharding(mesh(4), PartitionSpec("a"), memory_kind="pinned_host")
    tree = {"w": jax.device_put(numpy.arange(8, dtype="f4"), on_host)}
    checkpointer = open_job()
    save(checkpointer, 1, tree)
    found = checkpointer.restore(abstract(tree)).tree["w"]
    assert found.sharding == on_host
    assert numpy.array_equal(numpy.asarray(found), numpy.arange(8))


def test_a_checkpoint_is_loaded_by_its_path_whoever_saved_it(open_job, tmp_path):
    tree = {"params": {"w": put(numpy.arange(32.0, dtype="f4").reshape(8, 4), mesh(2, 2), "a", "b"),
                       "keys": jax.random.key(3)}, "lr": 0.5}  # fmt: skip
    checkpointer = open_job("job", tmp_path / "dir", save_storage_interval=1)
    save(checkpointer, 3, tree, "durable")
    (path,) = (tmp_path / "dir").glob("step-*")
    like = {"params": {"w": put(numpy.zeros((8, 4), "f4"), mesh(4), None, "a"),
                       "keys": jax.random.key(0)}, "lr": 0.0}  # fmt: skip
    found = libckpt.jax.load(path, like)
    assert_same(found, tree)
    assert found["params"]["w"].sharding == like["params"]["w"].sharding
    with pytest.raises(libckpt.InvalidArgument, match='"v" is not in the checkpoint'):
        libckpt.jax.load(path, {"v": jnp.zeros(3)})
    file = next(path.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1  # A checksum finds it.
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(libckpt.CheckpointError):
        libckpt.jax.load(path, like)


def test_saves_are_refused_after_a_restore_that_failed(open_job):
    checkpointer = open_job(raise_on_error=False)
    save(checkpointer, 1, {"x": jnp.ones(3)})
    with pytest.raises(libckpt.InvalidArgument):
        checkpointer.restore({"y": jnp.ones(3)})
    assert checkpointer.save(2, {"y": jnp.ones(3)}).outcome == "failed"
    checkpointer.restore({"x": jnp.ones(3)})
    save(checkpointer, 3, {"x": jnp.ones(3)})


@pytest.mark.parametrize(
    ("leaf", "told"),
    [
        (numpy.zeros((4, 5), "f4"), r'array "x" is float32 \[4, 5\] here and float32 \[4, 4\]'),
        (numpy.zeros((4, 4), "f2"), r'array "x" is float16 \[4, 4\] here and float32 \[4, 4\]'),
        (1, r'"x" is a int in `like` and was saved as an array'),
        (jax.ShapeDtypeStruct((4, 2), "uint32"), r'array "x" is uint32 \[4, 2\] here'),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_stays_as_it_is_when_that_is_asked_for(
    open_job, leaf, told
):
    checkpointer = open_job()
    save(checkpointer, 1, {"x": jnp.ones((4, 4)), "y": jnp.ones(3)})
    with pytest.raises(libckpt.InvalidArgument, match=told):
        checkpointer.restore({"x": leaf, "y": jnp.zeros(3)})
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        found = checkpointer.restore({"x": leaf, "y": jnp.zeros(3)}, strict=False).tree
        assert found["x"] is leaf
        assert (found["y"] == 1).all()


def test_plain_values_become_arrays_where_arrays_are_wanted(open_job):
    checkpointer = open_job()
    save(checkpointer, 1, {"count": 3, "x": numpy.arange(4, dtype="f4"), "text": "a"})
    wanted = {"count": put(jnp.int32(0), mesh(4)), "x": put(jnp.zeros(4), mesh(4), "a"),
              "text": ""}  # fmt: skip
    found = checkpointer.restore(wanted).tree
    assert_same(found, {"count": jnp.int32(3), "x": jnp.arange(4.0), "text": "a"})
    assert found["x"].sharding == wanted["x"].sharding
    for leaf in (put(jnp.zeros(8), mesh(4), "a"), put(jnp.zeros(4, "int32"), mesh(4), "a")):
        with pytest.raises(libckpt.InvalidArgument, match='array "x" is'):
            checkpointer.restore({**wanted, "x": leaf})
        assert checkpointer.restore({**wanted, "x": leaf}, strict=False).tree["x"] is leaf


@pytest.mark.parametrize("make", [int, numpy.int32])
def test_numbers_stand_for_the_arrays_that_became_of_them(open_job, make):
    """As a step of 0, which is an array once a compiled function has added 1."""
    checkpointer = open_job()
    tree = {"step": jnp.int32(3), "w": jnp.ones(2), "rate": jnp.bfloat16(0.5)}
    save(checkpointer, 1, tree)
    assert_same(checkpointer.restore({**tree, "step": make(0)}).tree, tree)
    assert_same(checkpointer.restore({**tree, "rate": 0.0}).tree, tree)
    for wrong in ({"step": 0.5}, {"step": True}, {"w": 1.0}):
        with pytest.raises(libckpt.InvalidArgument, match=f'"{min(wrong)}" is'):
            checkpointer.restore({**tree, **wrong})


def test_numbers_of_64_bits_are_not_cut_in_silence(open_job):
    checkpointer = open_job()
    values = numpy.arange(8) + 1e-12
    with jax.enable_x64(True):
        tree = {"x": put(values, mesh(4), "a")}
        wanted = abstract(tree)
        save(checkpointer, 1, tree)
        assert_same(checkpointer.restore(wanted).tree, tree)
    with pytest.raises(libckpt.InvalidArgument, match='"x" was saved as float64.*jax_enable_x64'):
        checkpointer.restore(wanted)


def test_keys_and_numbers_are_not_taken_for_one_another(open_job):
    checkpointer = open_job()
    key = jax.random.key(1)
    save(checkpointer, 1, {"key": key, "data": jax.random.key_data(key)})
    with pytest.raises(libckpt.InvalidArgument, match='array "key" has PRNG keys on one side'):
        checkpointer.restore({"key": jax.random.key_data(key)})
    with pytest.raises(libckpt.InvalidArgument, match='array "data" has PRNG keys on one side'):
        checkpointer.restore({"data": key})


def test_a_leaf_that_is_not_there_is_refused_by_name(open_job):
    checkpointer = open_job()
    with pytest.raises(libckpt.NotFound):
        checkpointer.restore({"x": jnp.zeros(3)})
    assert checkpointer.restore_or({"x": 1}) == (0, {"x": 1})
    save(checkpointer, 1, {"x": jnp.zeros(3)})
    with pytest.raises(libckpt.InvalidArgument, match='"z" is not in .*, which has "x"'):
        checkpointer.restore({"z": jnp.zeros(3)})


def test_the_best_steps_by_an_array_of_the_loss_stay(open_job, tmp_path):
    checkpointer = open_job(dir=tmp_path / "best", save_storage_interval=1, max_ckpt_num=1,
                            keep_best=1, best_metric="loss")  # fmt: skip
    saves = [checkpointer.save, checkpointer.save_checkpoint_if_needed, checkpointer.save]
    for step, loss in enumerate([3.0, 1.0, 2.0], 1):
        array = put(jnp.float32(loss), mesh(4))
        saves[step - 1](step, {"w": jnp.ones(8)}, metrics=lambda array=array: {"loss": array})
        checkpointer.session.flush()  # Each step, so that all could be kept.
    checkpointer.close()
    kept = {each.step: each.metrics for each in
            libckpt.list_published(tmp_path / "best").checkpoints}  # fmt: skip
    assert kept == {2: {"loss": 1.0}, 3: {"loss": 2.0}}


def test_a_save_that_fails_is_counted_and_raises_nothing_into_training(open_job, caplog):
    checkpointer = open_job(raise_on_error=False)
    gone = jnp.zeros(3)
    gone.delete()
    for step, tree in enumerate([{"x": gone}, {"x": object()}], 1):
        assert checkpointer.save(step, tree).outcome == "failed"
        assert checkpointer.session.counts()["failed"] == step
    assert 'item "jax.leaves.x" is a builtins.object' in caplog.text
    save(checkpointer, 3, {"x": jnp.ones(3)})
    assert (checkpointer.restore({"x": jnp.zeros(3)}).tree["x"] == 1).all()


def test_disabled_saves_do_nothing_and_training_begins_anew(open_job, monkeypatch):
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    checkpointer = open_job()
    assert checkpointer.restore_or({"x": 1}) == (0, {"x": 1})
    assert checkpointer.save(1, {"x": jnp.zeros(3)}).outcome == "disabled"
    checkpointer.close()


def test_disabled_a_load_of_a_path_says_why_it_cannot_be(open_job, tmp_path, monkeypatch):
    checkpointer = open_job(dir=tmp_path / "dir")
    checkpointer.save(1, {"x": jnp.ones(3)})
    checkpointer.close()
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    with pytest.raises(libckpt.Unsupported, match="libckpt is disabled .* nothing else reads"):
        libckpt.jax.load(tmp_path / "dir", {"x": jnp.zeros(3)})
    monkeypatch.delenv("LIBCKPT_DISABLE")
    assert (libckpt.jax.load(tmp_path / "dir", {"x": jnp.zeros(3)})["x"] == 1).all()


def test_a_plain_session_names_the_door_for_arrays_of_jax(runtime):
    session = libckpt.init("plain", raise_on_error=True)
    with pytest.raises(libckpt.Unsupported, match="libckpt.jax.Checkpointer"):
        session.save(1, {"x": jnp.zeros(3)})
    session.abandon()


def test_arrays_of_numpy_keep_the_types_that_only_jax_has(runtime):
    session = libckpt.init("types", raise_on_error=True)
    saved = {name: numpy.ones((2, 3), jnp.dtype(name)) for name in TYPES}
    saved["scalar"] = jnp.dtype("bfloat16").type(1.5)
    session.save(1, {"arrays": saved}, wait=60).committed.result()
    filled = {"arrays": {name: numpy.zeros_like(value) for name, value in saved.items()}}
    session.restore(filled)
    assert_same(filled["arrays"], saved)
    session.abandon()


def test_the_words_of_processes_go_through_the_coordinator_of_jax():
    jaxlib = pytest.importorskip("jax._src.lib")._jax
    reserved = ports.reserve()
    address = f"127.0.0.1:{reserved.getsockname()[1]}"
    service = jaxlib.get_distributed_runtime_service(address, 1)
    client = jaxlib.get_distributed_runtime_client(address, 0)
    client.connect()
    store = _coordinator.Store(client)
    try:
        assert not store.check(["a"])
        with pytest.raises(RuntimeError):  # The core takes it for a rank that is late.
            store.wait(["a"], datetime.timedelta(seconds=0.01))
        store.set("a", "1")
        store.set("a", "2")
        assert store.check(["a"])
        assert not store.check(["a", "b"])
        store.wait(["a"], datetime.timedelta(seconds=60))
        assert store.get("a") == b"2"
        store.delete_key("a")
        assert not store.check(["a"])
    finally:
        client.shutdown()
        service.shutdown()
        reserved.close()


def test_a_coordinator_that_is_missing_or_another_one_is_said(monkeypatch):
    class Client:
        key_value_set = key_value_delete = blocking_key_value_get = None

    with pytest.raises(libckpt.Unsupported, match="has no key_value_try_get"):
        _coordinator.Store(Client())
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(libckpt.InvalidArgument, match="jax.distributed.initialize"):
        libckpt.jax.Checkpointer("job")


def test_cells_go_round_in_messages_of_one_size_and_damage_is_found(monkeypatch):
    rows, places = [], [numpy.arange(100, dtype="u1"), numpy.arange(7, dtype="u1")]
    monkeypatch.setattr(_exchange, "MESSAGE", 32)

    def send(row, is_source):
        assert is_source
        rows.append(row.copy())
        return row

    monkeypatch.setattr(_exchange.multihost_utils, "broadcast_one_to_all", send)
    _exchange._broadcast(0, 0, places, [100, 7])
    assert [len(row) for row in rows] == [32 + _exchange.SUM] * 4

    def receive(to):
        queue = iter(rows)
        monkeypatch.setattr(_exchange.multihost_utils, "broadcast_one_to_all",
                            lambda row, is_source: next(queue))  # fmt: skip
        _exchange._broadcast(0, 1, to, [100, 7])
        assert next(queue, None) is None

    found = [numpy.zeros_like(place) for place in places]
    receive(found)
    assert [bytes(each) for each in found] == [bytes(each) for each in places]
    found[0][:] = 0
    receive([None, found[1]])  # It needs only one of them.
    assert not found[0].any()
    rows[2][5] ^= 1
    with pytest.raises(libckpt.Corruption, match="1 message.* of process 0"):
        receive(found)


# --- processes


class Training:
    """trainers/jax_steps.py in one process or more, on meshes that differ from run to run."""

    program = "jax_steps.py"

    def __init__(self, scratch):
        self._reserved = []
        self._scratch, self._processes, self._logs, self._count = scratch, [], [], 0

    def free_port(self):
        """One that nobody else is given before the test has ended."""
        self._reserved.append(ports.reserve())
        return self._reserved[-1].getsockname()[1]

    def start(self, processes, on, job, steps, *directory, hold_at=0, nodes=(), devices=4):
        """`nodes`: the environment of each process, where they are not all on one node. The
        processes share the devices."""
        port = self.free_port()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOLD_AT": str(hold_at),
                       "XLA_FLAGS": f"{DEVICES}{devices // processes}"}  # fmt: skip
        self._count += 1
        self._logs = [self._scratch / f"run-{self._count}-{i}.log" for i in range(processes)]
        for i, log in enumerate(self._logs):
            words = (i, processes, port, on, job, steps, *directory)
            with log.open("w") as output:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, TRAINERS / self.program, *map(str, words)],
                        env={**environment, **(nodes[i] if nodes else {})}, stdout=output,
                        stderr=subprocess.STDOUT,
                    )  # fmt: skip
                )
        return self

    def read(self):
        return [log.read_text() for log in self._logs]

    def said(self, word):
        """For each process, the rest of its lines that begin with the word."""
        found = []
        for i, text in enumerate(self.read()):
            lines = [line.removeprefix(f"p{i} ") for line in text.splitlines()
                     if line.startswith(f"p{i} ")]  # fmt: skip
            found.append([line.removeprefix(word).split() for line in lines
                          if line.startswith(f"{word} ")])  # fmt: skip
        return found

    def finish(self):
        """The words of all on each step, as one."""
        for process in self._processes:
            assert process.wait(SECONDS_MAX) == 0, "\n".join(self.read())[-6000:]
        self._processes = []
        return self.steps()

    def steps(self):
        first, *others = [dict((int(s), tuple(rest)) for s, *rest in said)
                          for said in self.said("step")]  # fmt: skip
        assert all(other == first for other in others)
        return first

    def began(self):
        """(step, digest, source, number of processes that saved) as all of them said."""
        told = [(*began[0], *(source or [("none", 0)])[0]) for began, source in
                zip(self.said("began at"), self.said("source"), strict=True)]  # fmt: skip
        assert len(set(told)) == 1, told
        step, digest, source, saved_by = told[0]
        return int(step), digest, source, int(saved_by)

    def kill_when_it_holds(self):
        ends = time.monotonic() + SECONDS_MAX
        while not all(self.said("holds")):
            assert all(each.poll() is None for each in self._processes), self.read()
            assert time.monotonic() < ends, self.read()
            time.sleep(0.02)
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes = []
        return self.steps()

    def is_running(self):
        return all(process.poll() is None for process in self._processes)

    def stop(self):
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes = []
        for reserved in self._reserved:
            reserved.close()


@pytest.fixture
def training(runtime, tmp_path):
    found = Training(tmp_path)
    yield found
    found.stop()


def check_goes_on(training, made, source, saved_by):
    """It began with what was made at the newest step; returns that step."""
    step, digest, *others = training.began()
    assert made[step][1] == digest
    assert others == [source, saved_by]
    return step


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_training_ends_bit_for_bit_as_one_that_was_left_alone(
    training, programs, tmp_path, processes
):
    expected = training.start(processes, "2x2", "whole", 10).finish()
    directory = tmp_path / "dir"
    made = training.start(processes, "2x2", "job", 10, directory, hold_at=5).kill_when_it_holds()
    assert made == {step: expected[step] for step in made}
    made = training.start(processes, "2x2", "job", 10, directory, hold_at=8).kill_when_it_holds()
    assert check_goes_on(training, expected, "own_memory", processes) == 5
    lose_memory(programs)
    made = training.start(processes, "2x2", "job", 10, directory).finish()
    # Step 5 where it was committed before step 4 was taken to storage: the newest one is taken.
    assert check_goes_on(training, expected, "storage", processes) in (4, 5, 8)
    assert made == {step: expected[step] for step in made}


def test_one_process_goes_on_from_what_two_had(training):
    made = training.start(2, "2x2", "job", 3, hold_at=3).kill_when_it_holds()
    training.start(1, "4", "job", 4).finish()
    assert check_goes_on(training, made, "own_memory", 2) == 3


@pytest.mark.slow
def test_two_processes_go_on_as_one_and_one_as_two_on_any_mesh(training):
    made = training.start(2, "2x2", "job", 3, hold_at=3).kill_when_it_holds()
    # The same number, another mesh: cells that no device had before.
    made |= training.start(2, "4", "job", 5, hold_at=5).kill_when_it_holds()
    assert check_goes_on(training, made, "own_memory", 2) == 3
    made |= training.start(1, "4", "job", 7, hold_at=7).kill_when_it_holds()
    assert check_goes_on(training, made, "own_memory", 2) == 5
    made |= training.start(1, "1", "job", 8, hold_at=8).kill_when_it_holds()
    assert check_goes_on(training, made, "own_memory", 1) == 7
    made |= training.start(2, "2x2", "job", 9).finish()
    assert check_goes_on(training, made, "own_memory", 1) == 8


@pytest.mark.slow
def test_another_number_of_devices_goes_on_from_memory_and_from_storage(
    training, programs, tmp_path
):
    """8 -> 4 -> 8 -> 4 devices in all that a process has; the last ones have storage alone."""
    job, made = ("job", tmp_path / "dir"), {}
    for step, devices, on in [(2, 8, "8"), (4, 4, "2x2"), (6, 8, "2x4")]:
        training.start(1, on, job[0], step, job[1], hold_at=step, devices=devices)
        found = training.kill_when_it_holds()
        if made:
            assert check_goes_on(training, made, "own_memory", 1) == step - 2
        made |= found
    training.start(1, "8", job[0], 7, job[1], devices=8)
    made |= training.finish()
    lose_memory(programs)
    training.start(1, "4", job[0], 8, job[1], devices=4).finish()
    assert check_goes_on(training, made, "storage", 1) == 7


@pytest.mark.slow
def test_the_cells_of_a_node_that_is_lost_come_from_its_peer(training, programs, tmp_path):
    nodes = {
        name: {"LIBCKPT_NODE": name, "LIBCKPT_RUNTIME_DIR": str(tmp_path / name),
               "LIBCKPT_INTERFACE": "127.0.0.1", "LIBCKPT_PORT": str(training.free_port()),
               "LIBCKPT_REPLICAS": "2"}
        for name in "ABC"
    }  # fmt: skip

    def on(names):
        return [nodes[name] for name in names]

    def stop(name):
        subprocess.run([programs / "ckpt", "stop", "--no-flush"], env=os.environ | nodes[name],
                       check=False, timeout=60, capture_output=True)  # fmt: skip

    try:
        made = training.start(2, "2x2", "job", 3, hold_at=3, nodes=on("AB")).kill_when_it_holds()
        stop("A")  # With its memory.
        made |= training.start(2, "2x2", "job", 5, nodes=on("CB")).finish()
        sources = [source[0][0] for source in training.said("source")]
        assert sources == ["peer_memory", "own_memory"]
        began = {(step, digest) for ((step, digest),) in training.said("began at")}
        assert began == {("3", made[3][1])}
    finally:
        for name in nodes:
            stop(name)


@pytest.mark.slow
def test_another_number_of_processes_goes_on_from_storage(training, programs, tmp_path):
    directory = tmp_path / "dir"
    made = training.start(2, "2x2", "job", 4, directory).finish()
    lose_memory(programs)
    sizes = [path.stat().st_size for path in directory.rglob("rank-*.safetensors")]
    assert len(sizes) == 2
    assert max(sizes) < 0.6 * sum(sizes)  # They share what both have.
    made |= training.start(1, "4", "job", 5, directory).finish()
    assert check_goes_on(training, made, "storage", 2) == 4
    lose_memory(programs)
    training.start(2, "4", "job", 6, directory).finish()
    assert check_goes_on(training, made, "storage", 1) == 5


@pytest.mark.slow
def test_the_example_of_levanter_ends_as_if_it_had_not_been_killed():
    example = TRAINERS.parents[2] / "examples" / "levanter_trainer.py"
    found = subprocess.run([sys.executable, example, "--demo"], capture_output=True, text=True,
                           timeout=900, check=False)  # fmt: skip
    assert found.returncode == 0, (found.stdout + found.stderr)[-4000:]
    assert found.stdout.count("--- kill -9") == 3
    assert found.stdout.count("the same as if nothing had happened") == 1
    assert found.stdout.count("are those of the last step: True") == 3
    (folders,) = [line.split() for line in found.stdout.splitlines() if "--- folders:" in line]
    assert {"step-50", "step-100", "step-150"} <= set(folders)


@pytest.mark.slow
def test_the_example_ends_as_if_it_had_not_been_killed():
    example = TRAINERS.parents[2] / "examples" / "jax_trainer.py"
    found = subprocess.run([sys.executable, example, "--demo"], capture_output=True, text=True,
                           timeout=900, check=False)  # fmt: skip
    assert found.returncode == 0, (found.stdout + found.stderr)[-4000:]
    assert found.stdout.count("--- kill -9") == 4
    assert found.stdout.count("the same as if nothing had happened") == 1
