"""Goal: a daemon may be killed at any moment of a save into a bucket: the newest step that is
published restores, and the next daemon leaves nothing of what the killed one had begun.

Method: one run logs the labels that a daemon passes while it saves into a bucket of moto's server
and removes old steps, and they are compared with the list below. A daemon is killed at each of
them, at the first time or at the second; all memory is lost, the newest step is restored and
compared, and the next one is saved.
"""

import subprocess

import bucket_server
import pytest
from test_buckets import assert_is_of, items_of, save_all

from libckpt import errors

ELEMENTS = 1_500_000  # An upload in parts.
STEPS = (1, 2, 3)

# Labels of a save or a removal on a disk. A bucket has no rename and no directory to sync: one put
# of the manifest publishes a step, and one deletion of it takes it back.
OF_DISKS_ALONE = {
    "aside.rename.after", "aside.rename.before", "flush.dirsync.after", "flush.dirsync.before",
    "flush.rename.before", "manifest.fsync", "prune.mark.before",
    "prune.member_unlink.first", "prune.member_unlink.last", "prune.rmdir",
}  # fmt: skip
# Those that a daemon passes between the opening of a session and its third step in a bucket.
OF_BUCKETS = {
    "commit.after", "commit.before", "flush.data_done", "flush.fsync.after", "flush.fsync.before",
    "flush.open_tmp", "flush.prealloc", "flush.published", "flush.rename.after",
    "flush.write.first", "flush.write.last", "latest.after", "latest.before", "manifest.before",
    "prune.log", "prune.mark.after", "prune.select", "seal.after", "seal.before", "slots.told",
    "snap.accept",
}  # fmt: skip

# Labels of a start. A daemon may still pass them when its session is open.
OF_STARTS = {"attach.accept", "attach.done", "load.done", "load.select", "reg.after", "reg.before"}


@pytest.fixture
def server(monkeypatch, tmp_path):
    yield from bucket_server.serve(bucket_server.start_moto, monkeypatch, tmp_path)


def save_until_death(session):
    """The steps that were durable before the daemon died; all of them: it did not."""
    durable = []
    for step in STEPS:
        try:
            session.save(step, items_of(step, ELEMENTS))
            session.wait(step, "durable", 60)
        except errors.CheckpointError:
            break
        durable.append(step)
    return durable


def labels_of_saves(job, directory, monkeypatch, tmp_path, ckpt):
    """Those that only a daemon that saves passes: not its start, not its end."""
    log = tmp_path / "labels"
    monkeypatch.setenv("LIBCKPT_POINTS_LOG", str(log))
    session = job(dir=directory, save_storage_interval=1, max_ckpt_num=1)
    begun = set(log.read_text().split())
    assert save_until_death(session) == list(STEPS)
    session.wait(STEPS[-1], "durable", 60)
    labels = set(log.read_text().split()) - begun
    session.close()
    ckpt("stop")
    monkeypatch.delenv("LIBCKPT_POINTS_LOG")
    return labels


def published(ckpt, directory):
    lines = [line.split() for line in ckpt("ls", directory).splitlines() if "published" in line]
    return sorted(int(line[1]) for line in lines)


def kill_at(label, hit, directory, job, ckpt, programs, monkeypatch):
    """The steps that were durable before it."""
    monkeypatch.setenv("LIBCKPT_POINTS", f"{label}=kill@{hit}")
    session = job(dir=directory, save_storage_interval=1, max_ckpt_num=1, raise_on_error=False)
    durable = save_until_death(session)
    session.abandon()
    monkeypatch.delenv("LIBCKPT_POINTS")
    subprocess.run([programs / "ckpt", "stop", "--no-flush"], capture_output=True, check=False)
    return durable


def check_aftermath(server, directory, durable, job, ckpt):
    prefix = directory.removeprefix("s3://bucket/")
    manifests = [key for key in server.keys(f"{prefix}/step-") if key.endswith("/manifest.json")]
    there = published(ckpt, directory) if manifests else []
    assert len(there) == len(manifests)
    assert not durable or there[-1] >= durable[-1]
    again = job(dir=directory, save_storage_interval=1, max_ckpt_num=1)
    if there:
        assert_is_of(again.restore(), there[-1], ELEMENTS)
    else:
        with pytest.raises(errors.NotFound):
            again.restore()
    last = STEPS[-1] + 1
    save_all(again, (last, last + 1), ELEMENTS)
    # Asked while a session ends, it may refuse: "the signal was closed".
    ckpt("stop")  # Nothing is under way then.
    again.abandon()
    assert published(ckpt, directory)[-1] == last + 1
    assert ckpt("verify", directory).count("good ") == len(published(ckpt, directory))
    assert server.uploads() == []
    folders = {}
    for key in server.keys(f"{prefix}/step-"):
        _, _, rest = key.partition(f"{prefix}/")
        step, _, name = rest.partition("/")
        folders.setdefault(step, set()).add(name.split("/")[0])
    assert folders.keys() == {f"step-{step:09}" for step in published(ckpt, directory)}
    for step, names in folders.items():
        assert len(names) == 2, (step, names)
        assert "manifest.json" in names


def test_the_labels_of_a_save_into_a_bucket_are_those_below(
    server, job, ckpt, monkeypatch, tmp_path
):
    labels = labels_of_saves(job, "s3://bucket/jobs/log", monkeypatch, tmp_path, ckpt)
    assert not labels & OF_DISKS_ALONE, labels & OF_DISKS_ALONE
    labels -= OF_STARTS
    assert labels == OF_BUCKETS, labels ^ OF_BUCKETS


@pytest.mark.slow
@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("label", sorted(OF_BUCKETS))
def test_a_daemon_killed_at_any_label_leaves_the_newest_step_and_no_garbage(
    server, job, ckpt, programs, monkeypatch, label, hit
):
    directory = "s3://bucket/jobs/run"
    durable = kill_at(label, hit, directory, job, ckpt, programs, monkeypatch)
    check_aftermath(server, directory, durable, job, ckpt)
