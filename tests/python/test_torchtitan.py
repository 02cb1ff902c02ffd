"""Goal: with libckpt's manager in torchtitan's seat, a killed training goes on from its newest step
in memory, in any number of ranks, and its folders are torchtitan's.

Method: ranks over gloo with torchtitan's own containers and manager, called as its Trainer calls
them; they are killed, and what they go on with is compared with a run of torchtitan's own manager
that nobody kills. Then managers in this process, which libckpt refuses memory in several ways.
"""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchtitan")

from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402

import libckpt.torchtitan  # noqa: E402
from test_ranks import Cluster, kill_all, said, states  # noqa: E402

STEPS = 8


@pytest.fixture
def titan(tmp_path, programs, trainer):
    cluster = Cluster(tmp_path, programs, trainer)
    cluster.program = "titan.py"

    def start(nodes, name, steps=STEPS, kind="libckpt", hold=0, environment=(), **options):
        options = json.dumps({"interval": 3, **options})
        return cluster.start(nodes, str(tmp_path / name), steps, kind, options, HOLD_AT=str(hold),
                             **dict(environment))  # fmt: skip

    start.cluster, start.folder = cluster, tmp_path / "job"
    yield start
    left = cluster.close()
    assert "processes" not in left, left


def killed(titan, nodes, hold, **options):
    process = titan(nodes, "job", hold=hold, **options)
    for rank in range(len(nodes)):
        process.wait_until_said(f"r{rank} made {hold} ")
    log = process.log.read_text()
    kill_all(log, len(nodes), process)
    return log


def began(log, rank=0):
    step, digest, tokens = said(log, rank, "began at")[0]
    assert int(tokens) == 8 * int(step)
    return int(step), digest


def folders(titan):
    return sorted(path.name for path in titan.folder.glob("step-*"))


def test_killed_ranks_go_on_bit_for_bit_and_their_folders_are_torchtitans(titan):
    whole = titan("AB", "stock", kind="stock").finish()
    log = killed(titan, "AB", 5, environment={"LIBCKPT_JOB": "named"})
    assert folders(titan) == ["step-3"]
    last = titan("AB", "job", job="named").finish()
    assert began(last) == (5, states(log)[5])
    assert "libckpt: resumes step 5 from own memory; the newest folder is" in last
    for rank in range(2):
        losses = [*said(log, rank, "loss"), *said(last, rank, "loss")]
        assert losses == said(whole, rank, "loss")
    assert said(last, 0, "rates") == said(whole, 0, "rates")
    assert states(last)[STEPS] == states(whole)[STEPS]
    assert folders(titan) == ["step-3", "step-6", "step-8"]
    stock = titan("AB", "job", STEPS + 1, kind="stock").finish()  # Loads what was written.
    assert began(stock) == (STEPS, states(whole)[STEPS])


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_and_without_memory_the_folder_is_taken(titan):
    two = killed(titan, "AB", 4)
    one = killed(titan, "A", 5)
    assert began(one) == (4, states(two)[4])
    log = killed(titan, "AB", 7)
    assert began(log) == (5, states(one)[5])
    for name in "AB":
        titan.cluster.stop(name)
    after = titan("AB", "job").finish()
    assert began(after) == (6, states(log)[6])  # The step of the newest folder.
    assert "memory has nothing" in after


@pytest.mark.slow
def test_disabled_it_is_torchtitans_own_manager(titan):
    whole = titan("AB", "stock", kind="stock").finish()
    log = titan("AB", "job", environment={"LIBCKPT_DISABLE": "1"}).finish()
    assert said(log, 0, "loaded") == [["False"]]
    assert states(log) == states(whole)
    assert folders(titan) == ["step-3", "step-6", "step-8"]
    assert "libckpt" not in log


@pytest.fixture
def manager(runtime, tmp_path):
    """One of a training of one rank."""
    made = []

    def make(**options):
        model = torch.nn.Linear(4, 4)
        settings = default_adamw(lr=0.01)
        settings.implementation = "foreach"
        optimizers = settings.build(model_parts=[model])
        config = libckpt.torchtitan.CheckpointManager.Config(
            enable=True, folder=str(tmp_path / "out"), keep_latest_k=0, **options
        )
        made.append(config.build(
            dataloader=None, model_parts=[model], optimizers=optimizers, states={}, sd_adapter=None,
            lr_schedulers=LRSchedulersContainer(optimizers, lambda step: 1.0),
        ))  # fmt: skip
        return made[-1]

    yield make
    for each in made:
        each.close()


REFUSALS = {
    "a_daemon_that_ends": ("DAEMON_PATH", "/bin/false", "start the daemon"),
    "a_file_that_is_not_there": ("SECRET_FILE", "/no/such/file", "there is no such file"),
    "memory": ("MEMORY_BUDGET", "1KiB", "exhausted"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_libckpt_refuses_ends_no_training_and_folders_are_written(
    manager, monkeypatch, caplog, tmp_path, name
):
    option, value, reason = REFUSALS[name]
    monkeypatch.setenv(f"LIBCKPT_{option}", value)
    checkpointer = manager(interval=1)
    assert checkpointer.load() is False
    assert reason in caplog.text and "steps are not captured in memory" in caplog.text
    checkpointer.save(1)
    checkpointer.close()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step-1"]


def test_an_option_of_the_environment_that_cannot_be_read_is_refused(manager, monkeypatch):
    """Not by training without memory, which its user has asked for in other words."""
    monkeypatch.setenv("LIBCKPT_PORT", "99999999")
    with pytest.raises(libckpt.InvalidArgument, match='option port = "99999999"'):
        manager(interval=1)


@pytest.mark.parametrize("wrong", [{"job": "a/b"}, {"save_mem_interval": 0}, {"replicas": 0}])
def test_a_field_that_is_wrong_is_refused_where_it_is_written(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        libckpt.torchtitan.CheckpointManager.Config(**wrong)


def test_a_job_without_a_name_is_one_of_its_folder_wherever_it_is_started(tmp_path, monkeypatch):
    found = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.add(libckpt.torchtitan._place("gs://bucket/run"))
        found.add(libckpt.torchtitan._place("../run"))
    assert found == {"gs://bucket/run", str((tmp_path / "run").resolve())}
