"""Goal: a job of JAX has the name that the code gives, or that LIBCKPT_JOB gives; Levanter's door
makes one of the base path otherwise. test_job_names.py says the same of the other doors.

Method: the session that each door opens is asked for its name.
"""

import pytest

pytest.importorskip("jax")

import libckpt  # noqa: E402
import libckpt.jax  # noqa: E402


def of_jax(folder, **given):
    with libckpt.jax.Checkpointer(**given) as checkpointer:
        return checkpointer.session.job


def of_levanter(folder, **given):
    levanter = pytest.importorskip("libckpt.levanter")
    checkpointer = levanter.Checkpointer(folder, **given)
    name = checkpointer._memory.session.job
    checkpointer.close()
    return name


@pytest.mark.parametrize("name_of", [of_jax, of_levanter])
def test_the_code_goes_over_the_environment(runtime, tmp_path, monkeypatch, name_of):
    monkeypatch.setenv("LIBCKPT_JOB", "named")
    assert name_of(tmp_path) == "named"
    assert name_of(tmp_path, job="ours") == "ours"


def test_without_both_levanters_base_path_names_it_and_jax_asks_for_a_name(runtime, tmp_path):
    assert of_levanter(tmp_path / "base").startswith("levanter-memory-base-")
    with pytest.raises(libckpt.InvalidArgument, match="option job"):
        of_jax(tmp_path)
