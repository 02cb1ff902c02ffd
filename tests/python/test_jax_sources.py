"""Goal: a tree of jax arrays is restored from memory alone or from storage alone, as asked for.

Method: a job with an older step on storage and a newer one in memory, on four devices of one
process.
"""

import pytest
from test_jax import jnp, mesh, open_job, put, save  # noqa: F401

import libckpt


def test_a_tree_comes_from_the_place_that_is_named(open_job, tmp_path):  # noqa: F811
    checkpointer = open_job(dir=tmp_path / "run", save_storage_interval=2)
    on = mesh(2, 2)

    def tree(number):
        return {"w": put(jnp.full((8, 4), float(number)), on, "a", "b"), "step": number}

    assert checkpointer.restore_or(tree(0), source="storage")[0] == 0  # The job begins.
    older = save(checkpointer, 2, tree(2), "durable")
    newer = save(checkpointer, older + 1, tree(3))
    for source, step, number in (("memory", newer, 3), ("storage", older, 2)):
        restored = checkpointer.restore(tree(0), source=source)
        assert (restored.step, restored.tree["step"]) == (step, number)
        assert (restored.tree["w"] == number).all()
        assert restored.source == {"memory": "own_memory"}.get(source, source)
    with pytest.raises(libckpt.NotFound):  # It was abandoned.
        checkpointer.restore(tree(0), newer)
    assert checkpointer.restore_or(tree(0), source="memory")[0] == older


def test_a_source_that_is_no_place_is_refused(open_job):  # noqa: F811
    with pytest.raises(libckpt.InvalidArgument, match="source 'disk'"):
        open_job().restore({}, source="disk")
