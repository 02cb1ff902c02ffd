"""Goal: a failure has a class of its own and a useful message, and never stops training by itself.

Method: wrong options, wrong calls, broken items, a daemon that is killed, with raise_on_error and
without it.
"""

import contextlib
import inspect
import itertools
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy
import pytest

import libckpt
from libckpt import errors
from libckpt.core import _launch, _ranks

torch = pytest.importorskip("torch")

import libckpt.torch  # noqa: E402
from libckpt.core.files import _publish_queue  # noqa: E402

HEADER = pathlib.Path(__file__).parents[2] / "libckpt" / "include" / "ckpt" / "error.hpp"


class Unsaveable:
    def __reduce__(self):
        raise TypeError("not this one")


def test_each_errc_has_one_class():
    enumeration = re.search(r"enum class Errc.*?\{(.*?)\};", HEADER.read_text(), re.DOTALL)
    codes = re.findall(r"^\s+([a-z_]+)(?: = \d+)?,", enumeration.group(1), re.MULTILINE)
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    names = {kind.__name__ for kind in classes} - {"CheckpointError"}
    expected = {"".join(part.title() for part in code.split("_")) for code in codes}
    assert names == (expected - {"Io"}) | {"StorageError"}
    assert all(issubclass(kind, libckpt.CheckpointError) for kind in classes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "job"),
        ({"name": "a/b"}, "a/b"),
        ({"save_mem_interval": "15 parsecs"}, "15 parsecs"),
        ({"rank": "one"}, 'option rank = "one": expected a whole number from 0 to 4294967295'),
        ({"rank": 1.5}, "option rank: 1.5 is of the wrong type"),
        ({"world_size": str(2**32)}, 'option world_size = "4294967296": expected a whole number'),
        ({"open_deadline": "5"}, 'option open_deadline = "5": expected a duration'),
        ({"open_deadline": float("inf")}, "option open_deadline: inf is no number of seconds"),
        ({"restore_deadline": -5}, "option restore_deadline: -5 is no number of seconds"),
        ({"save_storage_interval": "15minutes"}, 'option save_storage_interval = "15minutes"'),
        ({"memory_budget": "64 parsecs"}, 'option memory_budget = "64 parsecs"'),
        ({"memory_budget": 1.5}, "option memory_budget: 1.5 is of the wrong type"),
        ({"replicas": torch.ones(2)}, r"option replicas: tensor\(.* is of the wrong type"),
        ({"secret_file": "a\0b"}, "option secret_file: .* holds a NUL byte"),
        ({"embedded": "perhaps"}, 'option embedded = "perhaps": expected 1 or 0'),
        ({"rank": 3, "world_size": 2}, "rank"),
        ({"keep": 1, "max_ckpt_num": 1}, "are the same"),
        ({"keep": -1}, "option keep: -1 was given"),
        ({"max_ckpt_num": "-1"}, 'option max_ckpt_num = "-1": expected a whole number'),
        ({"keep": "\u0663"}, 'option keep = "\u0663": expected a whole number'),
        ({"raise_on_error": "perhaps"}, 'option raise_on_error = "perhaps": expected 1 or 0'),
        ({"debug": 1}, "option debug: 1 was given: give True or False"),
        ({"dir": ""}, "option dir: it is empty"),
        ({"dir": b"x"}, "option dir: b'x' was given: give text or a pathlib.Path"),
        ({"dir": 7}, "option dir: 7 was given: give text or a pathlib.Path"),
        ({"save_mem_interval": 0}, "option save_mem_interval: 0 was given"),
    ],
)
def test_a_wrong_option_is_named(job, options, message):
    with pytest.raises(libckpt.InvalidArgument, match=message):
        job(**options)


def test_options_are_told_in_the_words_of_the_environment_too(job, tmp_path):
    with job(
        memory_budget="64MiB", blob_capacity="1MiB", nodes=["A"], copy_threads="1", embedded="yes",
        dir=tmp_path / "dir", save_storage_interval="1h", restore_deadline=0.5, rank="0",
        world_size=" 1 ", replicas="1", raise_on_error="off", allow_pickle="False", debug="no",
    ) as session:  # fmt: skip
        assert (session.rank, session.world_size) == (0, 1)
        session.save(1, {"weight": torch.ones(3)}).committed.result(60)
    with job("refused", memory_budget="1KiB", raise_on_error=True) as session:
        with pytest.raises(libckpt.Exhausted, match="budget"):
            session.save(1, {"weight": torch.ones(3)})


@pytest.mark.parametrize("name", ["max_ckpt_num", "keep"])
def test_a_number_of_checkpoints_may_be_text(job, tmp_path, name):
    with job(dir=tmp_path / "dir", save_storage_interval="1", **{name: "2"}) as session:
        for step in (1, 2, 3):
            session.save(step, {"weight": torch.ones(3)})
            session.wait(step, "durable", 60)
    assert [each.step for each in libckpt.list_published(tmp_path / "dir").checkpoints] == [3, 2]


def test_what_only_a_pickle_can_hold_is_refused_where_the_words_say_so(job):
    with job(allow_pickle="no", raise_on_error="yes") as session:
        with pytest.raises(libckpt.Unsupported, match="allow_pickle"):
            session.save(1, {"strange": object()})


def test_a_job_has_one_session_in_a_process(job):
    first = job("one", open_deadline="30s", restore_deadline=30)
    with pytest.raises(libckpt.InvalidArgument, match="close that one first"):
        job("one")
    first.close()
    job("one")


def test_only_optimizers_are_guarded(job):
    model = torch.nn.Linear(2, 2)
    for given, kind in ((None, "NoneType"), (model, "Linear"), ([], "list")):
        with pytest.raises(libckpt.InvalidArgument, match=f"guard: {kind} was given"):
            job(kind).guard(given)


def test_a_closed_session_says_so(job):
    session = job()
    session.close()
    session.close()
    with pytest.raises(libckpt.InvalidArgument, match="closed"):
        session.save(1, {})
    with pytest.raises(libckpt.InvalidArgument, match="closed"):
        session.restore()
    assert session.status()["captured"] is None


def test_nothing_saved_is_not_found(job):
    session = job()
    with pytest.raises(libckpt.NotFound):
        session.restore()
    assert session.restore_or({}, default=-1) == -1


def test_a_directory_that_only_the_daemon_sees_is_named(job, tmp_path, caplog, monkeypatch):
    """As in a container that has not mounted it, while the daemon has."""
    session = job(dir=tmp_path / "dir")
    monkeypatch.setattr(session._restorer._gather, "_directory", str(tmp_path / "not-mounted"))
    assert session.restore_or({}, default=-1) == -1
    assert "not-mounted: the daemon has opened this directory" in caplog.text


def test_after_a_refused_restore_nothing_is_saved_until_told(job):
    with job("run", raise_on_error=True) as session:
        session.save(7, {"weight": torch.arange(8.0)})
        session.wait(7, "committed")
        with pytest.raises(libckpt.InvalidArgument):
            session.restore({"weight": torch.zeros(9)})
        with pytest.raises(libckpt.InvalidArgument, match="save step 8.*start_fresh"):
            session.save(8, {"weight": torch.zeros(9)})
        assert session.latest == 7
        session.start_fresh()
        session.save(9, {"weight": torch.zeros(9)})
        session.wait(9, "committed")
        assert session.latest == 9


def test_the_status_is_the_jobs_as_the_daemon_tells_it(job):
    session = job("run")
    session.save(7, {"weight": torch.arange(8.0)})
    session.wait(7, "committed")
    told = session.status()
    assert (told["job"], told["committed"], told["failed"]) == ("run", 7, 0)
    assert told["daemon"]["committed"]["step"] == 7
    assert [node["live"] for node in told["daemon"]["nodes"]] == [True]
    assert told["daemon"]["if_node_died"][0]["steps_lost"] == 7
    session.abandon()
    assert session.status()["daemon"] is None


def test_an_unsaveable_item_is_named(job):
    with pytest.raises(libckpt.InvalidArgument, match=r'"bag\.odd" is a .*Unsaveable.*not this'):
        job(allow_pickle=True).save(1, {"bag": {"odd": Unsaveable()}})
    assert sys.exc_info() == (None, None, None)


def test_a_trainer_s_items_need_no_pickle(job):
    session = job()
    trained = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(trained.parameters())
    items = {"model": trained, "optimizer": optimizer, "rng": libckpt.RNG(), "t": (1, {2: None})}
    session.save(1, items).captured.result(30)
    session.restore(items)


TEXTS = [  # The call, its exception, and the words in its text: the thing and the way out.
    (lambda session: session.save(2, [1]), libckpt.InvalidArgument, 'items: .*a list was given'),
    (lambda session: session.save(2, {3: 4}), libckpt.InvalidArgument, "with the name 3 was given"),
    (
        lambda session: session.restore({"t": torch.ones(2)}),
        libckpt.InvalidArgument,
        r'tensor "t" is F32 \[2\] here and F32 \[3\] there\. .* With strict=False',
    ),
    (
        lambda session: session.restore({"n": {}}),
        libckpt.InvalidArgument,
        'item "n" was not saved; with strict=False',
    ),
    (
        lambda session: session.guard(torch.nn.Linear(1, 1)),
        libckpt.InvalidArgument,
        "guard: Linear was given: an optimizer of torch",
    ),
    (
        lambda session: session.close() or session.restore(),
        libckpt.InvalidArgument,
        "job job: the session was closed: open another with libckpt.init",
    ),
]


@pytest.mark.parametrize(("do", "kind", "text"), TEXTS)
def test_an_error_names_what_it_is_about_and_what_to_do(job, do, kind, text):
    session = job()
    session.save(1, {"t": torch.ones(3)}).captured.result(30)
    with pytest.raises(kind, match=text):
        do(session)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("not_due", "was not due by save_mem_interval"),
        ("skipped_unavailable", "the daemon or its memory could not be had"),
        ("skipped_by_agreement", "the ranks had agreed on a later step"),
        ("disabled", "LIBCKPT_DISABLE"),
        ("failed", r'session\.counts\(\)\["last_error"\]'),
    ],
)
def test_a_wait_for_a_save_that_was_none_says_why(job, outcome, text):
    ticket = libckpt.Ticket(job(), 3, outcome, 0.0)
    with pytest.raises(libckpt.NotFound, match=f"step 3 will not be captured: its save .*{text}"):
        ticket.captured.result(30)


def test_a_wait_for_a_step_that_no_save_brings_fails_at_once_and_says_why(job):
    session, began = job(save_mem_interval=10), time.monotonic()
    session.save(10, {"weight": torch.zeros(4)})
    session.wait(10, "captured")
    assert session.save_checkpoint_if_needed(11, {"weight": torch.zeros(4)}).outcome == "not_due"
    with pytest.raises(errors.NotFound, match="step 11 has no save on this rank"):
        session.wait(11, "captured")
    with contextlib.suppress(TypeError, libckpt.CheckpointError):
        session.save(12, {"weight": torch.zeros(4), "bad": Unsaveable()})
    with pytest.raises(errors.NotFound, match="its save failed: .*bad"):
        session.wait(12, "captured")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("variable", ["RANK", "LIBCKPT_PORT"])
def test_a_number_of_the_environment_that_is_none_is_named(runtime, monkeypatch, variable):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv(variable, "one")
    with pytest.raises(libckpt.InvalidArgument, match=f"{variable}: 'one' is in the environment"):
        _launch.complete({"job": "job"})
        _launch._exchange({"job": "job", "interface": "127.0.0.1"}, _ranks.Ranks("job"))


def test_a_queue_whose_memory_stays_full_says_what_to_look_at(runtime, tmp_path, monkeypatch):
    monkeypatch.setattr(_publish_queue, "SLOT_DEADLINE", 0.0)
    box = _publish_queue.PublishQueue("job", tmp_path / "dir")
    ticket = libckpt.Ticket(box.session, 1, "skipped_no_slot", 0.0)
    monkeypatch.setattr(box.session, "save", lambda step, items: ticket)
    try:
        with pytest.raises(libckpt.Unavailable, match="was skipped, as all Slots .*`ckpt status`"):
            box.capture({"a": 1})
    finally:
        box.close()


def test_a_failing_save_is_counted_and_told_but_does_not_raise(job, caplog):
    session = job(raise_on_error=False)
    with caplog.at_level(logging.ERROR, logger="libckpt"):
        for step in range(1, 6):
            ticket = session.save(step, {"odd": Unsaveable()})
            assert ticket.outcome == "failed"
            assert not ticket
        assert session.status()["failed"] == 5
        assert "Unsaveable" in session.status()["last_error"]
        assert len(caplog.records) == 1  # The others are counted only.
        session.save(6, {"sparse": torch.eye(2).to_sparse()})
        assert len(caplog.records) == 2  # Another trouble.
    session.save(7, {"fine": 1}).captured.result(30)


def test_an_error_of_a_state_dict_does_not_reach_training(job):
    class Broken:
        def state_dict(self):
            raise ZeroDivisionError("mine")

    assert job("one", raise_on_error=False).save(1, {"x": Broken()}).outcome == "failed"
    with pytest.raises(ZeroDivisionError, match="mine"):
        job("two").save(1, {"x": Broken()})


def test_steps_grow(job):
    session = job()
    session.save(5, {"a": 1}).captured.result(30)
    with pytest.raises(libckpt.InvalidArgument, match="5"):
        session.save(5, {"a": 1})


def test_training_goes_on_when_the_daemon_is_killed(job, runtime, programs):
    session = job(raise_on_error=False)
    session.save(1, {"a": torch.ones(10)}).captured.result(30)
    listed = subprocess.run(["pgrep", "-f", str(programs / "ckptd")], stdout=subprocess.PIPE,
                            text=True, check=True)  # fmt: skip
    for process in map(int, listed.stdout.split()):
        if f"LIBCKPT_RUNTIME_DIR={runtime}" in environment_of(process):
            os.kill(process, signal.SIGKILL)
    patience = time.monotonic() + 60
    for step in itertools.count(2):
        assert time.monotonic() < patience, session.status()
        ticket = session.save(step, {"a": torch.ones(10)})
        assert ticket.outcome != "failed"
        try:
            session.wait(step, "captured", 0.05)
            break
        except libckpt.CheckpointError:  # Skipped, or lost with the daemon.
            continue
    assert session.status()["captured"] == step
    assert session.status()["daemon_restarts"] >= 1


def environment_of(process):
    try:
        return pathlib.Path(f"/proc/{process}/environ").read_text(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user cannot mount a file system")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=False)


def test_a_full_disk_does_not_stop_what_memory_does(job, small_disk):
    session = job(dir=small_disk / "dir", save_storage_interval=1)
    large = torch.ones(1 << 20)
    ticket = session.save(1, {"a": large})
    patience = time.monotonic() + 60
    while "step 1 is not stored" not in (problem := session.status()["last_error"]):
        assert time.monotonic() < patience, problem
        with pytest.raises(libckpt.Unavailable):
            ticket.durable.result(0.05)
    assert str(small_disk / "dir") in problem
    assert "No space left on device" in problem
    session.save(2, {"a": large}).committed.result(30)
    assert session.restore().step == 2
    assert session.status()["durable"] is None


def test_a_load_of_files_that_a_full_disk_keeps_waiting_says_so(small_disk, runtime, monkeypatch):
    monkeypatch.setattr(_publish_queue, "SILENT_MAX", 0.05)
    path, filler = small_disk / "one.pt", small_disk / "filler"
    libckpt.torch.save(torch.zeros(100_000), path)
    libckpt.torch.wait()
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    told = []

    class MakeRoom(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
            filler.unlink(missing_ok=True)

    logger, handler = logging.getLogger("libckpt"), MakeRoom(logging.WARNING)
    logger.addHandler(handler)
    try:
        libckpt.torch.save(torch.ones(100_000), path)
        assert float(libckpt.torch.load(path)[-1]) == 1.0
    finally:
        logger.removeHandler(handler)
        for box in list(_publish_queue._queues):
            if small_disk in box.directory.parents:
                box.close()  # Before its disk goes.
    assert len(told) == 1, told
    assert f"the newest save to {path} is not on storage yet" in told[0]


def test_storage_that_fails_is_not_waited_for_as_long_as_slow_storage(small_disk, runtime):
    libckpt.torch.save(torch.zeros(100_000), small_disk / "one.pt")
    libckpt.torch.wait()
    (box,) = [box for box in _publish_queue._queues if small_disk in box.directory.parents]
    waits, health = [], {"notice": "", "last_error": "of long ago"}

    class Late:
        def wait(self, step, level, deadline):
            waits.append(deadline)
            raise libckpt.Unavailable("late")

        def counts(self):
            return health

    session, box.session = box.session, Late()
    try:
        full = "step 3 is not stored: No space left on device"
        longest_of = {"": _publish_queue.DURABLE_DEADLINE, full: _publish_queue.FAILING_DEADLINE}
        for problem, longest in longest_of.items():
            health["notice"] = problem
            with pytest.raises(libckpt.Unavailable):
                box._await(2, _publish_queue.DURABLE_DEADLINE, ["one.pt"])
            assert sum(waits) == longest
            waits.clear()
    finally:
        box.session = session
        box.close()  # Before its disk goes.


def test_a_save_that_begins_when_storage_fails_waits_for_a_second_only(tmp_path, runtime):
    queue = _publish_queue.PublishQueue("job", tmp_path / "job", rank=0, world_size=1)
    health, waits = {"notice": "step 3 is not stored: No space left on device"}, []

    class Full:
        def counts(self):
            return health

        def prepare(self, items):
            pass

        def start_fresh(self):
            pass

        def save(self, step, items, wait):
            waits.append(wait)
            return True

        def close(self, deadline):
            waits.append(deadline)

    session, queue.session = queue.session, Full()
    try:
        queue.close()  # It has given up the files that are missing.
        assert waits == [_publish_queue.FAILED_DEADLINE]
        waits.clear()
        queue.capture_as(100, {})
        health["notice"] = "lost: B; steps get 1 of 2 copies"
        queue.capture_as(200, {})
        assert waits == [_publish_queue.FAILED_DEADLINE, _publish_queue.SLOT_DEADLINE]
        health["notice"] = "step 3 was restored twice"
        assert not queue._is_failing()
    finally:
        queue.session = session
        queue.close()


def test_a_capture_that_fails_says_nothing_of_storage(tmp_path, runtime):
    """An older save, which is healthy, is waited for as before."""

    class Broken:
        def state_dict(self):
            raise RuntimeError("is not stored")

    queue = _publish_queue.PublishQueue("job", tmp_path / "job", rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError):
            queue.session.save(1, {"x": Broken()})
        counts = queue.session.counts()
        assert counts["degraded"] == "saves fail: is not stored"
        assert counts["notice"] == ""
        assert not queue._is_failing()
    finally:
        queue.close()


def write_through_data(tensor):
    tensor.data.add_(1)


def write_through_numpy(tensor):
    tensor.detach().numpy()[0, 0] += 1


# Neither moves the tensor's version counter.
@pytest.mark.parametrize("write", [write_through_data, write_through_numpy])
def test_the_debug_mode_names_who_changes_a_tensor(job, caplog, write):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job(debug=True).guard(optimizer)
    session.save(1, {"model": model})
    counted = model.weight._version
    write(model.weight)
    assert model.weight._version == counted
    with caplog.at_level(logging.ERROR, logger="libckpt"):
        optimizer.step()
    assert ["model.weight" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("write", [write_through_data, write_through_numpy])
def test_the_debug_mode_drops_a_capture_whose_tensors_changed(job, write):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = job(debug=True, raise_on_error=False).guard(optimizer)
    session.save(1, {"model": model})
    optimizer.step()
    session.wait(1, "captured", 30)
    assert session.save(2, {"model": model})
    write(model.weight)
    optimizer.step()
    assert 'model.weight" changed while' in session.counts()["last_error"]
    assert session.counts()["captured"] == 1
    step = 3
    while not session.save(step, {"model": model}):  # Until a Slot is free.
        step += 1
    write(model.weight)  # It was copied before the save returned.
    session.wait(step, "captured", 30)


def test_a_directory_of_another_job_is_refused(job, tmp_path):
    job("mine", dir=tmp_path / "dir").save(1, {"a": 1}).captured.result(30)
    with pytest.raises(libckpt.CheckpointError, match="mine"):
        job("other", dir=tmp_path / "dir").save(1, {"a": 1}).captured.result(30)


def test_importing_the_package_imports_no_framework():
    script = "import sys, libckpt; print([m for m in ('torch', 'numpy', 'transformers') " \
             "if m in sys.modules])"  # fmt: skip
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                           check=True)  # fmt: skip
    assert found.stdout == "[]\n"


def test_a_restart_that_wants_more_memory_than_there_is_restores_from_memory(job, caplog):
    options = {"memory_budget": "20MiB", "blob_capacity": "64KiB", "raise_on_error": False}
    weights = numpy.arange(1 << 19, dtype=numpy.float64)
    first = job("grown", **options)
    assert first.save(1, {"weights": weights}, wait=30)
    first.wait(1, "committed")
    first.abandon()
    second = job("grown", **options)
    larger = {"weights": numpy.zeros(1 << 19), "new": numpy.zeros(1 << 20)}
    restored = second.restore(larger, strict=False)
    assert (restored.step, restored.source) == (1, "own_memory")
    assert (larger["weights"] == weights).all()
    assert second.save(2, larger).outcome == "failed"
    assert "raise memory_budget" in caplog.text
