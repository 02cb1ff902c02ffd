"""Goal: an option that cannot be read ends a training before it begins, in every door, by an error
that names the option and its value; in the code, in the environment, and what no door has.

Method: the doors as test_job_names.py opens them, and those that open their job later, each with
one option that is wrong. A job that has a session in the process already is no wrong option.
"""

import importlib

import pytest

import libckpt

torch = pytest.importorskip("torch")

from test_job_names import DOORS as OPENED  # noqa: E402


def door(module, name):
    return getattr(importlib.import_module(f"libckpt.{module}"), name)


def easy(folder, **given):
    return door("megatron", "initialize_easyckpt")(1, 0, 0, save_dir=str(folder), **given)


LATER = {  # They open their job, if at all, when a first step is saved or looked for.
    "easyckpt": ("megatron.core", easy),
    "local manager": ("megatron.core", lambda folder, **given: door(
        "megatron", "LocalCheckpointManager")(str(folder), **given)),
    "lightning's callback": ("lightning", lambda folder, **given: door(
        "lightning", "Callback")(**given)),
    "transformers' callback": ("transformers", lambda folder, **given: door(
        "transformers", "Callback")(**given)),
    "dcp": ("torch", lambda folder, **given: door("dcp", "Storage")(str(folder), **given)),
    "torchft": ("torchft", lambda folder, **given: door("torchft", "Transport")("name", **given)),
    "torch_checkpointing": ("torch_checkpointing", lambda folder, **given: door(
        "torch_checkpointing", "StorageConfig")(str(folder), **given)),
}  # fmt: skip
NEEDS = {"megatron": "megatron.core"}
CASES = {**{name: (NEEDS.get(name, name), make) for name, (make, _) in OPENED.items()}, **LATER}
WITH_OPTIONS = [name for name in CASES if name != "torchtitan"]  # Its options are fields.


@pytest.fixture
def made(runtime, tmp_path, monkeypatch, caplog):
    """Makes one door with these options, and nothing is opened or logged of it."""
    monkeypatch.delenv("LIBCKPT_JOB", raising=False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")

    def make(name, **given):
        module, open_door = CASES[name]
        pytest.importorskip(module)
        try:
            return open_door(tmp_path / "folder", **given)
        finally:
            assert not runtime.exists()
            assert "training goes on" not in caplog.text
            assert "not captured in memory" not in caplog.text

    return make


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_a_value_in_the_code_that_cannot_be_read_is_refused(made, name):
    with pytest.raises(libckpt.InvalidArgument, match='option port = "99999999"'):
        made(name, port="99999999")


@pytest.mark.parametrize("name", CASES)
def test_a_value_in_the_environment_that_cannot_be_read_is_refused(made, name, monkeypatch):
    monkeypatch.setenv("LIBCKPT_COPY_THREADS", "many")
    with pytest.raises(libckpt.InvalidArgument, match='option copy_threads = "many".*COPY_THREADS'):
        made(name)


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_an_unknown_option_is_refused_by_name(made, name):
    with pytest.raises((TypeError, libckpt.InvalidArgument), match="replicsa"):
        made(name, replicsa=2)


@pytest.mark.parametrize("name", ["transformers", "accelerate", "lightning"])
def test_whether_copies_overlap_may_be_text_and_is_refused_where_that_says_nothing(made, name):
    with pytest.raises(libckpt.InvalidArgument, match='option overlap = "maybe"'):
        made(name, overlap="maybe")


@pytest.mark.parametrize("wrong", [{"save_storage_interval": "often"}, {"max_ckpt_num": -1}])
def test_the_numbers_of_easyckpt_are_refused_before_training(runtime, tmp_path, wrong):
    pytest.importorskip("megatron.core")
    given = {"save_mem_interval": 1, "save_storage_interval": 0, "max_ckpt_num": 0} | wrong
    name, value = wrong.popitem()
    with pytest.raises(libckpt.InvalidArgument, match=f"option {name}.*{value}"):
        door("megatron", "initialize_easyckpt")(**given, save_dir=str(tmp_path))


@pytest.mark.parametrize("name", LATER)
def test_disabled_no_option_keeps_a_training_from_its_framework(made, name, monkeypatch):
    monkeypatch.setenv("LIBCKPT_COPY_THREADS", "many")
    monkeypatch.setenv("LIBCKPT_DISABLE", "1")
    made(name)
