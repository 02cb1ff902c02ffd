"""Goal: every option of the library is a keyword that an editor completes, in all places.

Method: the signatures of what takes options, as an editor reads them from the modules and from the
stubs, are compared with the library's own table of options.
"""

import importlib
import inspect
import keyword

import pytest

import libckpt
from libckpt import _init, _native

PYTHONS_OWN = {"raise_on_error", "guard", "keep", "allow_pickle", "debug"}
OF_THE_TRAINER = {"job", "dir", "overlap"}


def keywords_of(function):
    """The parameters that it takes by name; not **options, which say nothing."""
    parameters = inspect.signature(function).parameters.values()
    assert not [each for each in parameters if each.kind is each.VAR_KEYWORD]
    return {each.name for each in parameters if each.name not in ("self", "trainer")}


@pytest.fixture
def of_the_library():
    names = _native.option_names()
    assert len(names) == len(set(names)) > 25
    return {f"{name}_" if keyword.iskeyword(name) else name for name in names}


def test_the_options_are_the_same_in_a_wrong_environment(monkeypatch, of_the_library):
    monkeypatch.setenv("LIBCKPT_CONFIG", "/no/such/file")
    monkeypatch.setenv("LIBCKPT_RANK", "one")
    monkeypatch.setenv("LIBCKPT_DISABLE", "perhaps")
    assert set(_native.option_names()) == {name.removesuffix("_") for name in of_the_library}


def test_init_has_each_option_of_the_library(of_the_library):
    assert keywords_of(libckpt.init) == of_the_library | PYTHONS_OWN


def test_a_dictionary_of_options_has_all_of_them(of_the_library):
    wanted = (of_the_library | PYTHONS_OWN) - {"job", "dir", "guard"}
    assert libckpt.Options.__annotations__.keys() == wanted


@pytest.mark.parametrize("name", ["TrainerWrapper", "Callback"])
def test_so_has_the_trainer(of_the_library, name):
    pytest.importorskip("transformers")
    import libckpt.transformers

    wanted = libckpt.Options.__annotations__.keys() | OF_THE_TRAINER
    assert keywords_of(getattr(libckpt.transformers, name)) == wanted


@pytest.mark.parametrize("name", ["init", "TrainerWrapper", "Callback"])
def test_an_unknown_option_is_refused_by_name(name):
    module = libckpt
    if name != "init":
        pytest.importorskip("transformers")
        module = importlib.import_module("libckpt.transformers")
    with pytest.raises(TypeError, match="no_such_option"):
        getattr(module, name)(*(["job"] if name != "Callback" else []), no_such_option=1)


def test_each_option_reaches_the_library(monkeypatch):
    opened = []
    monkeypatch.setattr(_init, "Session", lambda options, **flags: opened.append((options, flags)))
    given = {name: 1 for name in _init.KEYWORDS} | {"raise_on_error": True, "allow_pickle": False,
                                                   "debug": True, "keep": None}  # fmt: skip
    libckpt.init("job", "/dir", **given)
    ((options, flags),) = opened
    assert flags == {"raise_on_error": True, "allow_pickle": False, "debug": True}
    names = set(_native.option_names())
    assert options == {name: 1 for name in names} | {"job": "job", "dir": "/dir"}


def test_a_guard_can_be_an_option(job):
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(2, 2) for _ in range(3)]
    optimizers = [torch.optim.SGD(layer.parameters()) for layer in layers]
    for number, guard in enumerate((optimizers[0], optimizers, tuple(optimizers[:2]))):
        guarded = [each() for each in job(str(number), guard=guard)._tensors.optimizers]
        assert guarded == (list(guard) if isinstance(guard, (list, tuple)) else [guard])
    assert job("none", guard=[])._tensors.optimizers == []


def test_a_guard_that_is_none_opens_nothing(job, runtime):
    with pytest.raises(libckpt.InvalidArgument, match="guard: int was given"):
        job(guard=3)
    assert not runtime.exists()


@pytest.mark.parametrize(("text", "raises"), [("true", True), ("1", True), ("0", False)])
def test_whether_a_save_raises_can_be_said_by_the_environment(job, monkeypatch, text, raises):
    monkeypatch.setenv("LIBCKPT_RAISE_ON_ERROR", text)
    session = job(raise_on_error=None)
    if raises:
        with pytest.raises(libckpt.InvalidArgument):
            session.save(1, {"": 1})
    else:
        assert session.save(1, {"": 1}).outcome == "failed"


def test_a_flag_of_the_environment_that_is_no_flag_is_refused(monkeypatch):
    monkeypatch.setenv("LIBCKPT_RAISE_ON_ERROR", "maybe")
    with pytest.raises(libckpt.InvalidArgument, match='option raise_on_error = "maybe"'):
        libckpt.init("job")
