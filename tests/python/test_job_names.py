"""Goal: a training's job has the name that the code gives, or that LIBCKPT_JOB gives, or one that
its door makes of the training's folder: in this order, in every door.

Method: each door is opened up to where it opens the session, which a stand-in notes the name of.
"""

import importlib
import types

import pytest

import libckpt

pytest.importorskip("torch")


def transformers_(folder, **given):
    import libckpt.transformers

    trainer = types.SimpleNamespace(
        args=types.SimpleNamespace(output_dir=str(folder)), is_deepspeed_enabled=False,
        is_fsdp_enabled=False,
    )  # fmt: skip
    callback = libckpt.transformers.Callback(**given)
    callback.attach(trainer)
    with callback._memory.training():  # It opens no session before.
        pass


def accelerate_(folder, **given):
    import accelerate

    import libckpt.accelerate

    accelerator = accelerate.Accelerator(project_dir=str(folder))
    _ = libckpt.accelerate.attach(accelerator, **given)._memory.session


def deepspeed_(folder, **given):
    import libckpt.deepspeed as door

    stand_in = {"problem_of": lambda engine: None, "Layout": lambda engine: types.SimpleNamespace(
        rank=0, ranks=1)}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, function in stand_in.items():
            patch.setattr(door, name, function)
        door.attach(types.SimpleNamespace(global_steps=0), dir=str(folder), **given)


def lightning_(folder, **given):
    import libckpt.lightning

    trainer = types.SimpleNamespace(default_root_dir=str(folder))
    libckpt.lightning.Callback(**given)._open(trainer)


def megatron_(folder, **given):
    from libckpt.megatron import _easy

    _ = _easy.EasyCkpt(1, 0, 0, save_dir=str(folder), **given).memory


def torchtitan_(folder, job="", **_):
    from libckpt.torchtitan import CheckpointManager

    manager = CheckpointManager.__new__(CheckpointManager)
    manager.folder = str(folder)
    manager._open(types.SimpleNamespace(job=job, save_mem_interval=1, replicas=1))


DOORS = {  # By framework: how the door is opened, and the module that opens the session.
    "transformers": (transformers_, "transformers._memory"),
    "accelerate": (accelerate_, "accelerate._memory"),
    "deepspeed": (deepspeed_, "deepspeed._memory"),
    "lightning": (lightning_, "lightning._callback"),
    "megatron": (megatron_, "megatron._memory"),
    "torchtitan": (torchtitan_, "torchtitan"),
}


@pytest.fixture(params=DOORS)
def name_of(request, tmp_path, monkeypatch):
    """The name of the job that the door opens for a training in one folder."""
    pytest.importorskip("megatron.core" if request.param == "megatron" else request.param)
    open_door, module = DOORS[request.param]
    names = []

    def note(job, *_, **__):
        names.append(job)
        raise libckpt.Unavailable("this is as far as a door is opened here")

    monkeypatch.setattr(importlib.import_module(f"libckpt.{module}"), "init", note)

    def name_of(**given):
        open_door(tmp_path / "a folder", **given)
        return names.pop()

    return name_of


def test_the_code_goes_over_the_environment_and_that_over_the_door(name_of, monkeypatch):
    made = name_of()
    monkeypatch.setenv("LIBCKPT_JOB", "named")
    assert made != name_of() == "named"
    assert name_of(job="ours") == "ours"
    monkeypatch.delenv("LIBCKPT_JOB")
    assert name_of() == made


def test_a_file_names_the_job_too(name_of, tmp_path, monkeypatch):
    (tmp_path / "conf").write_text("job = of-the-file\n")
    monkeypatch.setenv("LIBCKPT_CONFIG", str(tmp_path / "conf"))
    assert name_of() == "of-the-file"


def test_a_project_without_a_folder_has_the_name_of_the_environment(monkeypatch):
    accelerate = pytest.importorskip("accelerate")
    import libckpt.accelerate

    accelerator = accelerate.Accelerator()
    with pytest.raises(libckpt.InvalidArgument, match="LIBCKPT_JOB"):
        libckpt.accelerate.attach(accelerator)


@pytest.mark.parametrize("given", [None, ""])
def test_a_session_may_leave_its_name_to_the_environment(job, monkeypatch, given):
    with pytest.raises(libckpt.InvalidArgument, match="option job: .* LIBCKPT_JOB"):
        libckpt.init()
    monkeypatch.setenv("LIBCKPT_JOB", "named")
    assert job(given).job == "named"
    assert job("ours").job == "ours"
