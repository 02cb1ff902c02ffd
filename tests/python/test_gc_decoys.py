"""Goal: `ckpt gc` removes checkpoints that its rule does not keep, and not a byte of what links and
mounts in the directory lead to, or of what only looks like ours.

Method: real sessions save, and things of somebody else are put beside the steps and into them; the
program collects garbage, and all that is not ours is compared with what it was.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402

import libckpt  # noqa: E402
from libckpt import _programs  # noqa: E402

STEPS = (1, 2, 3)


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "run"
    options = {"runtime_dir": tmp_path / "daemon", "memory_budget": "64MiB", "replicas": 1}
    with libckpt.init("decoys", directory, save_storage_interval=1, **options) as session:
        for step in STEPS:
            session.save(step, {"weight": torch.full((1000,), float(step))}, wait=30)
            session.wait(step, "durable")
    _programs.run("ckpt", "stop", "--runtime-dir", str(tmp_path / "daemon"))
    return directory


@pytest.fixture
def elsewhere(tmp_path):
    """Files of somebody else, with names that are ours in a checkpoint."""
    directory = tmp_path / "elsewhere"
    for name in ("manifest.json", "rank-00000.safetensors", "folder/rank-00000.part", "precious"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"precious {name}")
    return directory


@pytest.fixture
def mount():
    """Mounts a directory on another one, until the test has ended."""
    mounted = []

    def bind(source, target):
        target.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "--bind", str(source), str(target)], capture_output=True, check=False
        )
        if done.returncode != 0:
            pytest.skip("this user cannot mount a directory")
        mounted.append(target)

    yield bind
    for target in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(target)], check=False)


def tree_of(directory):
    """By path: a link's target, a file's bytes, or nothing for a directory. No link is followed."""
    found = {}
    for parent, folders, files in os.walk(directory):
        for name in folders + files:
            path = pathlib.Path(parent, name)
            if path.is_symlink():
                found[path] = os.readlink(path)
            else:
                found[path] = path.read_bytes() if path.is_file() else None
    return found


def collect(run, tmp_path):
    return _programs.run(
        "ckpt", "gc", str(run), "--keep", "1", "--runtime-dir", str(tmp_path / "daemon")
    )


def steps_in(run):
    return [each.step for each in libckpt.list_published(run).checkpoints]


def put_decoys(run, elsewhere):
    for name in ("step-1", "step-000000001.bak", "step-000000009", ".step-000000001", "latest~"):
        (run / name).write_text("precious")
    (run / ".step-000000007.t1.0000000000000001").symlink_to(elsewhere)
    (run / "step-000000008").symlink_to(elsewhere)
    (run / "step-000000001" / "link").symlink_to(elsewhere / "precious")
    (run / "step-000000001" / "rank-00009.safetensors").symlink_to(elsewhere / "precious")
    os.link(elsewhere / "precious", run / "step-000000002" / "manifest.json.bak")
    os.link(run / "step-000000002" / "rank-00000.safetensors", elsewhere / "kept")
    shutil.copytree(run / "step-000000001", run / "step-000000001 (copy)", symlinks=True)


def test_nothing_that_links_and_mounts_lead_to_is_touched(run, elsewhere, mount, tmp_path):
    ours = set(tree_of(run))
    put_decoys(run, elsewhere)
    mount(elsewhere, run / "mounted")
    mount(elsewhere, run / "step-000000001" / "folder")
    mount(elsewhere, run / ".step-000000006.t1.0000000000000001")
    before = {path: what for path, what in tree_of(run).items() if path not in ours}
    outside = tree_of(elsewhere)
    assert len(before) > 20
    done = collect(run, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Removed 2 checkpoints" in done.stdout
    assert steps_in(run) == [STEPS[-1]]
    now = tree_of(run)
    assert {path: now.get(path, "gone") for path in before} == before
    assert tree_of(elsewhere) == outside


def test_a_step_that_somebody_mounted_from_elsewhere_stays(run, elsewhere, mount, tmp_path):
    kept = elsewhere / "kept"
    shutil.copytree(run / "step-000000001", kept)
    mount(kept, run / "step-000000001")
    before = tree_of(kept)
    done = collect(run, tmp_path)
    assert done.returncode != 0, done.stdout
    assert "step-000000001" in done.stderr
    assert tree_of(kept) == before
    assert steps_in(run)[0] == STEPS[-1]
