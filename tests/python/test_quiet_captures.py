"""Goal: a capture into memory begins no collective on any group of the ranks that train; a save to
a folder of the framework's begins those of the framework's own save, and no others.

Method: the trainers of the other tests by trainers/quiet.py, with two ranks over gloo, which
numbers the collectives of each group. They are counted from the entry of a door in a step on.
"""

import json

import pytest

torch = pytest.importorskip("torch")

from test_ranks import Cluster, said  # noqa: E402

SLOW = pytest.mark.slow
STEPS = 4


@pytest.fixture
def watching(trainer):
    """Starts trainers that say what the calls begin."""

    def make(*calls):
        return lambda script, *arguments: trainer(
            "quiet.py", script, json.dumps(calls), *arguments
        )

    return make


@pytest.fixture
def cluster(tmp_path, programs, watching):
    clusters = []

    def make(program, *calls):
        clusters.append(Cluster(tmp_path / str(len(clusters)), programs, watching(*calls)))
        clusters[-1].scratch.mkdir()
        clusters[-1].program = program
        return clusters[-1]

    yield make
    for each in clusters:
        left = each.close()
        assert "processes" not in left, left


def begun(log, call, rank=0, calls_min=STEPS - 1):
    """The collectives of each call, by group."""
    found = [json.loads(" ".join(words[1:])) for words in said(log, rank, "call")
             if words[0] == call]  # fmt: skip
    assert len(found) >= calls_min, log[-4000:]
    return found


def check_quiet(log, *calls):
    for call in calls:
        for rank in (0, 1):
            assert not any(begun(log, call, rank)), (call, rank)


def check_no_more(saves, expected):
    """A save begins no more on any group than the framework's own."""
    for ours, theirs in zip(saves, expected, strict=True):
        assert all(count <= theirs.get(group, 0) for group, count in ours.items()), (ours, theirs)


def test_the_work_that_a_call_begins_is_seen(cluster):
    """Else all the others would prove nothing."""
    log = cluster("sharded.py", "sharded:digest").start("AA", "job", STEPS).finish()
    assert all(found["0"] > 0 for rank in (0, 1) for found in begun(log, "digest", rank))


@pytest.mark.parametrize(
    ("program", "more"),
    [("sharded.py", {}), pytest.param("sharded.py", {"dir": "yes"}, marks=SLOW),
     pytest.param("sharded.py", {"COPIES": "2"}, marks=SLOW),
     pytest.param("ranks.py", {}, marks=SLOW)],
    ids=["fsdp2", "fsdp2-dir", "hsdp", "ddp"],
)  # fmt: skip
def test_captures_of_a_session_begin_no_work_beside_it(cluster, tmp_path, program, more):
    places = [tmp_path / "dir"] if "dir" in more else []
    more = {name: value for name, value in more.items() if name.isupper()}
    calls = ("Session.save_checkpoint_if_needed", "Session.finish_capture")
    job = cluster(program, *(f"libckpt.session:{call}" for call in calls))
    log = job.start("AAAA" if more else "AA", "job", STEPS, *places, **more).finish()
    check_quiet(log, calls[0])


@SLOW
def test_a_save_through_dcp_is_quiet(cluster):
    """DCP itself tells the ranks' plans to one another, on the group that it was given."""
    own = ("set_up_storage_writer", "prepare_local_plan", "prepare_global_plan", "write_data",
           "finish", "stage", "synchronize_staging")  # fmt: skip
    job = cluster("dcp_ranks.py", "dcp_ranks:save_in_memory",
                  *(f"libckpt.dcp:Storage.{name}" for name in own))  # fmt: skip
    log = job.start("AA", "job", STEPS, ALONE="1").finish()
    check_quiet(log, *(f"Storage.{name}" for name in own[:2] + own[3:4]))
    for rank in (0, 1):
        found = begun(log, "save_in_memory", rank)
        assert all("0" not in each for each in found), found  # The group of training.
        assert len({group for each in found for group in each}) == 1


@SLOW
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_an_engine_of_deepspeed_and_its_folders_are_quiet(watching, tmp_path, stage):
    pytest.importorskip("deepspeed")
    import test_deepspeed

    given = {"stage": stage, "steps": STEPS, "save_at": [2, 4], "end": "wait"}
    own, stock = "Folders.save", "DeepSpeedEngine.save_checkpoint"
    jobs = test_deepspeed.Jobs(watching(
        "libckpt.deepspeed._memory:Memory.capture", f"libckpt.deepspeed._folders:{own}",
        f"deepspeed.runtime.engine:{stock}",
    ))  # fmt: skip
    log = jobs.run(2, **given, folder=str(tmp_path / "own"))
    alone = jobs.run(2, **given, folder=str(tmp_path / "stock"), stock=True)
    jobs.close()
    check_quiet(log, "Memory.capture")
    for rank in (0, 1):
        assert begun(log, own, rank, 2) == begun(log, stock, rank, 2)
        # Where libckpt is not attached, it also writes `latest`.
        check_no_more(begun(log, own, rank, 2), begun(alone, stock, rank, 2))


@SLOW
@pytest.mark.parametrize("options", [{}, {"distributed": False}], ids=["distributed", "plain"])
def test_megatron_and_its_folders_are_quiet(cluster, tmp_path, options):
    pytest.importorskip("megatron.core")
    gather = "DistributedOptimizer.get_parameter_state_dp_zero"
    job = cluster("gpt.py", "libckpt.megatron._easy:EasyCkpt.capture",
                  "libckpt.megatron._folders:Folders.save",
                  f"megatron.core.optimizer.distrib_optimizer:{gather}")  # fmt: skip
    options |= {"directory": str(tmp_path / "folders"), "storage": 2}
    log = job.start("AA", "job", STEPS, json.dumps(options)).finish()
    check_quiet(log, "EasyCkpt.capture")
    for rank in (0, 1):
        saves = begun(log, "Folders.save", rank, 2)
        assert saves == (begun(log, gather, rank, 2) if "distributed" not in options else [{}, {}])


@SLOW
@pytest.mark.parametrize("more", [{}, {"sharded": True}], ids=["ddp", "fsdp2"])
def test_a_loop_of_accelerate_and_its_folders_are_quiet(watching, tmp_path, more):
    pytest.importorskip("accelerate")
    import test_accelerate

    options = {"ranks": 2, "steps": STEPS, "every": 2, **more}
    start = watching("libckpt.accelerate:State.capture", "accelerate:Accelerator.save_state",
                     "libckpt.accelerate._folders:Folders.save")  # fmt: skip
    log = test_accelerate.run(start, tmp_path / "own", **options).finish()
    alone = test_accelerate.run(start, tmp_path / "stock", "stock", **options).finish()
    check_quiet(log, "State.capture")
    for rank in (0, 1):
        ours = begun(log, "Folders.save", rank, 2)
        theirs = begun(alone, "Accelerator.save_state", rank, 2)
        check_no_more(ours, theirs)


@SLOW
def test_a_fit_of_lightning_and_its_files_are_quiet(watching, tmp_path):
    pytest.importorskip("lightning.pytorch")
    import test_lightning

    calls = ("Callback.on_train_batch_start", "Callback.on_train_batch_end")
    start = watching(*(f"libckpt.lightning._callback:{call}" for call in calls),
                     "libckpt.lightning._checkpoint_io:CheckpointIO.save_checkpoint")  # fmt: skip
    options = {"ranks": 2, "steps": STEPS, "every": 2}
    log = test_lightning.run(start, tmp_path / "root", **options).finish()
    check_quiet(log, *calls)
    # Rank 0 writes the files.
    assert not any(begun(log, "CheckpointIO.save_checkpoint", 0, 2))


@SLOW
@pytest.mark.parametrize("case", ["ddp", "zero-3", "fsdp"])
def test_a_trainer_of_transformers_is_quiet(watching, tmp_path, case):
    pytest.importorskip("transformers")
    import test_sharded_trainers as trainers

    more = {"ddp": {}, "zero-3": trainers.deepspeed(3), "fsdp": trainers.fsdp("SHARDED")}[case]
    calls = ("Callback._capture", "Callback.on_step_begin")
    start = watching(*(f"libckpt.transformers:{call}" for call in calls))
    options = {"max_steps": STEPS, "save_steps": 100, "save_strategy": "no", **more}
    log = trainers.train(start, tmp_path / "output", **options).finish()
    check_quiet(log, *calls)


@SLOW
@pytest.mark.parametrize("case", ["ddp", "zero-3", "fsdp"])
def test_the_folders_of_a_trainer_of_transformers_are_quiet(watching, tmp_path, case):
    """Ranks that are not sharded wait for one another, before and behind their files."""
    pytest.importorskip("transformers")
    import test_sharded_trainers as trainers

    cases = {"ddp": ("_checkpoints:TrainerFolders", {}, 2),
             "zero-3": ("_sharded_folders:ShardedFolders", trainers.deepspeed(3), 0),
             "fsdp": ("_sharded_folders:ShardedFolders", trainers.fsdp("SHARDED"), 0)}  # fmt: skip
    owner, more, waits = cases[case]
    own, stock = f"{owner.partition(':')[2]}.save", "Trainer._save_checkpoint"
    options = {"max_steps": STEPS, "save_steps": 2, **more}
    start = watching(f"libckpt.transformers.{owner}.save")
    log = trainers.train(start, tmp_path / "output", **options).finish()
    start = watching(f"transformers:{stock}")
    alone = trainers.train(start, tmp_path / "stock", "stock", **options).finish()
    for rank in (0, 1):
        expected = begun(alone, stock, rank, 2)
        for each in expected:
            each["0"] = each.get("0", 0) + waits
        check_no_more(begun(log, own, rank, 2), expected)


@SLOW
def test_a_manager_of_torchtitan_is_quiet(cluster, tmp_path):
    pytest.importorskip("torchtitan")
    job = cluster("titan.py", "libckpt.torchtitan:CheckpointManager._save")
    options = json.dumps({"interval": 100})
    log = job.start("AA", str(tmp_path / "folder"), STEPS, "libckpt", options).finish()
    for rank in (0, 1):  # The last step is a folder, too, by torchtitan's own save.
        assert not any(begun(log, "CheckpointManager._save", rank)[:-1])
