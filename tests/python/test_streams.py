"""Goal: on GPUs the library learns of the streams that work is queued on at each moment, of the
tensors of every GPU, and of updates that a CUDA graph replays; what its copies still read is kept.

Method: the registration of a session with a library, streams and GPUs that only write down what is
asked of them: which stream waits for which, and what was guarded when.
"""

import types
import weakref

import pytest

torch = pytest.importorskip("torch")

from libckpt.core import _arrays, _frameworks, _registration, _tensors  # noqa: E402


class Client:
    """The library: it remembers its arguments."""

    def __init__(self, log):
        self.log = log
        self.outcome = "started"

    def guard(self, stream):
        self.log.append(f"guard {stream}")

    def save(self, step, stream, always, wait):
        self.log.append(f"save {stream}")
        return self.outcome

    def update(self, tensors, archives):
        self.guarded = {name for name, *_, is_guarded in tensors if is_guarded}

    def set_blob(self, name, content):
        pass

    def hold(self, holds):
        pass

    def settle(self, step, problem):
        assert not problem

    def copied(self):
        return None


class Stream:
    def __init__(self, handle, log):
        self.cuda_stream = handle
        self.log = log
        self.is_done = False

    def wait_stream(self, other):
        self.log.append(f"{self.cuda_stream} waits for {other.cuda_stream}")

    def record_event(self):
        self.log.append(f"event on {self.cuda_stream}")
        return types.SimpleNamespace(query=lambda: self.is_done)


class World:
    """A trainer with a tensor on each of some GPUs, by the streams that it says are current."""

    def __init__(self, monkeypatch):
        self.log = []
        self.client = Client(self.log)
        self.current = {}
        self.is_recording = False
        self.step = 0
        monkeypatch.setattr(_registration._native, "Client", lambda options: self.client)
        monkeypatch.setattr(
            _frameworks, "current_streams", lambda gpus: [self.current[gpu] for gpu in gpus]
        )
        monkeypatch.setattr(_frameworks, "is_recording_graph", lambda: self.is_recording)
        monkeypatch.setattr(_tensors, "write_counts", lambda tensors: [0] * len(tensors))
        self.registration = _registration.Registration({})
        monkeypatch.setattr(self.registration, "view", lambda tensors: tensors)

    def stream(self, handle):
        return Stream(handle, self.log)

    def save(self, views, members=None):
        self.log.clear()
        self.step += 1
        none = _arrays.Arrays((), views)
        self.registration.capture(self.step, ("{}", views, members or {}), none, True)
        return self.told()

    def told(self):
        return [each for each in self.log if not each.startswith("event")]

    def guard(self, optimizer):
        self.registration.guard(optimizer, lambda given: None)

    def before_step(self, optimizer=None):
        self.log.clear()
        self.registration.before_step(optimizer)
        return self.told()


class View:
    type, shape, nbytes = "F32", (4,), 16
    is_buffered = is_frozen = False
    kept, counts_writes = None, True

    def __init__(self, gpu, address=4096):
        self.gpu = gpu
        self.address = address

    def untyped_storage(self):
        return self


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_an_update_is_ordered_where_it_is_queued_and_not_where_the_save_was(world):
    world.current[0] = world.stream(11)
    assert world.save({"w": View(0)})[-1] == "save 11"
    world.current[0] = world.stream(22)  # with torch.cuda.stream(...): optimizer.step()
    assert world.before_step() == ["guard 22", "guard 11"]
    assert world.save({"w": View(0)})[-1] == "save 22"
    assert world.before_step() == ["guard 22"]


def test_tensors_of_several_gpus_are_ordered_by_the_streams_of_each(world):
    world.current = {0: world.stream(11), 1: world.stream(12), 3: world.stream(0)}
    views = {"a": View(3), "b": View(0), "c": View(1)}
    # The default stream of another GPU is known to the library.
    assert world.save(views)[-3:] == ["11 waits for 12", "save 11", "12 waits for 11"]
    assert world.before_step() == ["guard 11", "guard 12", "guard 0"]


def test_a_gpu_that_only_a_file_of_its_own_lies_on_counts(world):
    world.current = {0: world.stream(11), 2: world.stream(13)}
    members = {"file": {"entry": View(2)}}
    told = world.save({"a": View(0)}, members)
    assert told[-3:] == ["11 waits for 13", "save 11", "13 waits for 11"]
    assert world.save({}, members)[-1] == "save 13"


def test_without_a_gpu_nothing_is_asked_of_one(world):
    assert world.save({"a": View(-1)}) == ["guard 0", "save 0"]
    assert world.before_step() == ["guard 0"]


def test_what_copies_of_a_gpu_still_read_is_kept_until_they_have_ended(world):
    world.current[0] = world.stream(11)
    view = View(0)
    kept = weakref.ref(view)
    world.save({"w": view})
    del view
    world.client.outcome = "skipped_no_slot"  # A guard does not wait on the host.
    world.save({"w": View(0, 8192)})
    world.save({"w": View(0, 8192)})
    assert kept() is not None
    world.current[0].is_done = True
    world.save({"w": View(0, 8192)})
    assert kept() is None


def test_what_the_capture_before_held_goes_when_the_next_has_begun(world):
    world.current[0] = world.stream(11)
    view = View(0)
    kept = weakref.ref(view)
    world.save({"w": view})
    del view
    world.save({"w": View(0, 8192)})
    assert kept() is None


def adam_like(**options):
    parameter = torch.nn.Parameter(torch.zeros(4))
    return torch.optim.Adam([parameter], **options), View(-1, parameter.data_ptr())


def test_tensors_of_an_optimizer_that_a_graph_may_replay_are_not_left_for_later(world):
    optimizer, view = adam_like()
    world.guard(optimizer)
    world.save({"w": view})
    assert world.client.guarded == {"w"}
    optimizer.param_groups[0]["capturable"] = True
    world.save({"w": view})
    assert world.client.guarded == set()


def test_an_update_that_is_recorded_into_a_graph_is_guarded_for_the_last_time(world):
    optimizer, view = adam_like()
    other, other_view = adam_like()
    world.guard(optimizer)
    world.guard(other)
    views = {"w": view, "other": other_view}
    world.save(views)
    assert world.client.guarded == {"w", "other"}
    world.is_recording = True
    assert world.before_step(optimizer) == ["guard 0"]
    world.is_recording = False
    world.save(views)
    assert world.client.guarded == {"other"}
