"""Goal: a job of megatron-core goes on from memory, with the same ranks or with others, and its
folders on storage are Megatron's.

Method: real ranks over gloo train megatron-core's GPT on CPUs, are killed and started again with
other data and tensor parallel sizes. Losses are compared step by step with those of a run that
nobody kills, and the whole tensors bit for bit with what the ranks had when they were killed; they
are put together by Megatron's own means, without libckpt.
"""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from test_ranks import Cluster, kill_all, said  # noqa: E402

import libckpt  # noqa: E402


class Job:
    """Ranks of one job on one node."""

    def __init__(self, cluster, scratch):
        cluster.program = "gpt.py"
        self._cluster, self._scratch = cluster, scratch

    def start(self, ranks, job, steps, hold=0, **options):
        if job == "job":  # The others are not looked into.
            dump = self._scratch / job
            dump.mkdir(exist_ok=True)
            options = {"dump": str(dump), **options}
        environment = {"HOLD_AT": str(hold), **options.pop("environment", {})}
        return self._cluster.start("A" * ranks, job, steps, json.dumps(options), **environment)

    def run(self, ranks, job, steps, **options):
        """The log of ranks that come to their end."""
        return self.start(ranks, job, steps, **options).finish()

    def killed(self, ranks, job, steps, **options):
        """The log of ranks that are killed behind that step."""
        trainer = self.start(ranks, job, steps, hold=steps, **options)
        for rank in range(ranks):
            trainer.wait_until_said(f"r{rank} made {steps}\n")
        log = trainer.log.read_text()
        kill_all(log, ranks, trainer)
        return log

    def dumped_by_stages(self, name, stages):
        """The same of stages of a pipeline."""
        parts = [torch.load(self._scratch / "job" / f"{name}.{rank}") for rank in range(stages)]
        return {f"{key} {kind}": tensor for part in parts for key, kinds in part.items()
                for kind, tensor in kinds.items() if kind != "dimension"}  # fmt: skip

    def dumped(self, job, name, tensor):
        """The whole tensors of tensor parallel ranks, by name and what they are."""
        parts = [torch.load(self._scratch / job / f"{name}.{rank}") for rank in range(tensor)]
        whole = {}
        for key, first in parts[0].items():
            for kind in first.keys() - {"dimension"}:
                tensors = [part[key][kind] for part in parts]
                whole[f"{key} {kind}"] = joined(key, first["dimension"], tensors)
        return whole


def joined(name, dimension, tensors):
    if dimension is None:
        assert all(torch.equal(tensors[0], other) for other in tensors[1:]), name
        return tensors[0]
    if "linear_fc1" in name:  # Both halves of a gated layer are divided.
        halves = [tensor.chunk(2, dim=0) for tensor in tensors]
        return torch.cat([half for number in (0, 1) for half in (each[number] for each in halves)])
    return torch.cat(tensors, dim=dimension)


@pytest.fixture
def job(tmp_path, programs, trainer):
    cluster = Cluster(tmp_path, programs, trainer)
    yield Job(cluster, tmp_path)
    left = cluster.close()
    assert "processes" not in left, left


def losses(log, rank=0):
    return {int(step): float(loss) for step, loss in said(log, rank, "loss")}


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    apart = [name for name in found if not torch.equal(found[name], expected[name])]
    assert not apart


def check_goes_on(job, log, newest, tensor_before, tensor_now):
    """It began with all that the ranks before it had at a step, the newest or, where a rank had
    skipped that on a busy machine, the one before."""
    step = int(said(log, 0, "began at")[0][0])
    assert step in (newest, newest - 1), log
    assert f"libckpt: resumes step {step} from own memory" in log
    before = job.dumped("job", f"made-{step}", tensor_before)
    check_equal(job.dumped("job", f"began-{step}", tensor_now), before)


SLOW = pytest.mark.slow


def test_a_step_on_storage_has_the_metrics_of_its_save(job, tmp_path):
    options = {"dir": str(tmp_path / "dir"), "keep_best": 1, "best_metric": "loss"}
    log = job.run(2, "job", 3, storage=1, kept=1, options=options)
    found = libckpt.list_published(tmp_path / "dir").checkpoints
    assert found[0].step == 3
    assert [each.metrics["loss"] for each in found] == [losses(log)[each.step] for each in found]


@SLOW  # test_early_ends.py and the ranks with experts have it in the quick form.
@pytest.mark.parametrize("options", [{}, {"overlap": True}])
def test_the_same_ranks_go_on_bit_for_bit(job, options):
    """Also where parameters are gathered in the next forward pass only."""
    whole = job.run(2, "whole", 6, **options)
    job.killed(2, "job", 3, **options)
    log = job.run(2, "job", 6, **options)
    check_goes_on(job, log, 3, 1, 1)
    found, expected = losses(log), losses(whole)
    assert found == {step: expected[step] for step in found}
    assert max(found) == 6
    assert said(log, 0, "rates") == said(whole, 0, "rates")


@SLOW
@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"distributed": False}])
def test_other_numbers_of_data_parallel_ranks_go_on_from_memory(job, options):
    """2 -> 1 -> 2."""
    whole = losses(job.run(2, "whole", 6, **options))
    found = losses(job.killed(2, "job", 2, **options))
    log = job.killed(1, "job", 4, concat=True, **options)
    check_goes_on(job, log, 2, 1, 1)
    found |= losses(log)
    log = job.run(2, "job", 6, **options)
    check_goes_on(job, log, 4, 1, 1)
    found |= losses(log)
    assert found == pytest.approx(whole, rel=1e-2 if "bf16" in options else 1e-5)


@SLOW
def test_other_numbers_of_tensor_parallel_ranks_go_on_from_memory(job):
    """2 of each -> 2 tensor parallel ones -> 1 -> 2 of each."""
    whole = losses(job.run(1, "whole", 5))
    found = {}
    launches = [(4, 2), (2, 2), (1, 1), (4, 2)]
    for step, (ranks, tensor) in enumerate(launches, start=2):
        log = job.killed(ranks, "job", step, tensor=tensor)
        if step > 2:
            check_goes_on(job, log, step - 1, launches[step - 3][1], tensor)
        found |= losses(log)
    assert found == pytest.approx(whole, rel=1e-5)


@SLOW
def test_the_stages_of_a_pipeline_may_be_others(job):
    """2 -> 1 -> 2."""
    job.killed(2, "job", 2, pipeline=2, numbers=True)
    log = job.killed(1, "job", 3, numbers=True)
    (began,) = said(log, 0, "began at")[0]
    there = job.dumped_by_stages(f"made-{began}", 2)
    check_equal(job.dumped_by_stages(f"began-{began}", 1), there)
    log = job.run(2, "job", 4, pipeline=2, numbers=True)
    (began,) = said(log, 0, "began at")[0]
    check_equal(job.dumped_by_stages(f"began-{began}", 2),
                job.dumped_by_stages(f"made-{began}", 1))  # fmt: skip


@pytest.mark.parametrize("options", [{}, pytest.param({"bf16": True}, marks=SLOW)])
def test_expert_parallel_ranks_go_on_bit_for_bit(job, options):
    """Each has two of four experts, and as many go on."""
    options = {"expert": 2, "dump": None, **options}
    whole = losses(job.run(2, "whole", 5, **options))
    job.killed(2, "job", 3, **options)
    log = job.run(2, "job", 5, **options)
    (began,) = said(log, 0, "began at")[0]
    assert int(began) in (2, 3), log
    assert losses(log) == {step: whole[step] for step in range(int(began) + 1, 6)}


@SLOW
def test_other_numbers_of_expert_parallel_ranks_go_on_from_memory(job):
    """2 -> 1, which has all experts and one optimizer -> 2."""
    whole = losses(job.run(2, "whole", 6, expert=2, dump=None))
    found = losses(job.killed(2, "job", 2, expert=2, dump=None))
    for ranks, step, expert in [(1, 4, 1), (2, 6, 2)]:
        log = job.killed(ranks, "job", step, expert=expert, dump=None)
        (began,) = said(log, 0, "began at")[0]
        assert int(began) in (step - 2, step - 3), log
        found |= losses(log)
    assert found == pytest.approx(whole, rel=1e-5)


@SLOW
def test_what_the_same_number_of_ranks_divides_otherwise_is_refused_by_name(job):
    """A restore by as many ranks reads what each of them saved."""
    job.killed(2, "job", 2, tensor=2)
    refused = job.start(2, "job", 3)
    assert refused.wait() != 0
    assert "divide the model among their ranks otherwise" in refused.log.read_text()
    log = job.run(2, "job", 3, tensor=2)
    check_goes_on(job, log, 2, 2, 2)


def folders_in(directory):
    return sorted(path.name for path in directory.glob("iter_*"))


def tracker_of(directory):
    return (directory / "latest_checkpointed_iteration.txt").read_text()


def check_losses(log, whole, steps):
    expected = {step: whole[step] for step in steps}
    assert losses(log) == pytest.approx(expected, rel=1e-5)


@SLOW
@pytest.mark.parametrize("options", [{}, {"distributed": False}])
def test_stock_megatron_goes_on_from_the_folders(job, tmp_path, options):
    """With another number of data parallel ranks; and so does libckpt, when its memory is gone."""
    directory = tmp_path / "checkpoints"
    whole = losses(job.run(2, "whole", 8, **options))
    options["directory"] = str(directory)
    log = job.run(2, "job", 6, storage=2, kept=2, **options)
    check_losses(log, whole, range(1, 7))
    assert folders_in(directory) == ["iter_0000004", "iter_0000006"]
    assert tracker_of(directory) == "6"
    log = job.run(1, "stock", 8, stock=True, **options)
    assert said(log, 0, "began at") == [["6"]]
    check_losses(log, whole, (7, 8))
    log = job.run(1, "job", 8, **options)
    assert said(log, 0, "began at") == [["6"]]
    assert "iter_0000006; memory has no step" in log
    check_equal(job.dumped("job", "began-6", 1), job.dumped("job", "made-6", 1))
    check_losses(log, whole, (7, 8))


@SLOW
@pytest.mark.parametrize("options", [{}, {"distributed": False}])
def test_stock_megatron_loads_torch_dist_folders_in_any_number_of_ranks(job, tmp_path, options):
    """2 tensor parallel ranks -> 1, and 2 data parallel ones; and libckpt without memory."""
    directory = tmp_path / "checkpoints"
    whole = losses(job.run(1, "whole", 5, **options))
    options |= {"directory": str(directory), "format": "torch_dist"}
    job.run(2, "job", 4, storage=2, kept=1, tensor=2, **options)
    assert folders_in(directory) == ["iter_0000004"]
    assert tracker_of(directory) == "4"
    files = {path.name for path in (directory / "iter_0000004").iterdir()}
    assert {"common.pt", "metadata.json", ".metadata"} < files
    for ranks, tensor in [(1, 1), (2, 1), (2, 2)]:
        log = job.run(ranks, "stock", 5, stock=True, tensor=tensor, **options)
        assert said(log, 0, "began at") == [["4"]]
        check_losses(log, whole, (5,))
    log = job.run(1, "job", 5, **options)
    assert "iter_0000004; memory has no step" in log
    check_equal(job.dumped("job", "began-4", 1), job.dumped("job", "made-4", 2))
    check_losses(log, whole, (5,))


def test_a_torch_dist_folder_that_was_not_finished_is_not_there(job, tmp_path):
    """The ranks are killed behind a folder, and before the next one."""
    directory = tmp_path / "checkpoints"
    options = {"directory": str(directory), "format": "torch_dist", "storage": 2}
    job.killed(2, "job", 3, **options)
    log = job.run(2, "job", 3, **options)
    check_goes_on(job, log, 3, 1, 1)
    assert folders_in(directory) == ["iter_0000002"]
    assert tracker_of(directory) == "2"


def test_a_format_that_is_none_is_named():
    from libckpt import megatron

    with pytest.raises(libckpt.InvalidArgument, match='"zarr": give one of torch, torch_dist'):
        megatron.initialize_easyckpt(1, 1, 1, ckpt_format="zarr")


@SLOW
def test_a_folder_of_killed_ranks_is_whole_and_memory_may_be_newer(job, tmp_path):
    """Tensor parallel ranks, each with a file of its own."""
    options = {"directory": str(tmp_path / "checkpoints"), "storage": 2, "tensor": 2}
    whole = losses(job.run(2, "whole", 5, tensor=2))
    job.killed(2, "job", 3, **options)
    log = job.run(2, "job", 4, **options)
    check_goes_on(job, log, 3, 2, 2)
    assert "from own memory; the newest folder is 2" in log
    assert folders_in(tmp_path / "checkpoints") == ["iter_0000002", "iter_0000004"]
    for name in folders_in(tmp_path / "checkpoints"):
        folder = tmp_path / "checkpoints" / name
        found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pt"))
        assert found == [f"mp_rank_0{rank}/{file}" for rank in range(2)
                         for file in ("distrib_optim.pt", "model_optim_rng.pt")]  # fmt: skip
    log = job.run(2, "stock", 5, stock=True, **options)
    assert said(log, 0, "began at") == [["4"]]
    check_losses(log, whole, (5,))


@SLOW
def test_a_scheduler_is_not_stepped_twice_where_the_folder_is_newer(job, tmp_path):
    whole = job.run(1, "whole", 6)
    options = {"directory": str(tmp_path / "checkpoints"), "storage": 4, "memory": 3}
    job.killed(1, "job", 5, **options)
    log = job.run(1, "job", 6, **options)
    assert said(log, 0, "began at") == [["4"]]
    assert "iter_0000004, which is newer than step 3 in memory" in log
    assert said(log, 0, "rates") == said(whole, 0, "rates")
    check_losses(log, losses(whole), (5, 6))


@SLOW
def test_disabled_it_writes_the_folders_as_megatron_does(job, tmp_path):
    options = {"directory": str(tmp_path / "checkpoints"), "storage": 2,
               "environment": {"LIBCKPT_DISABLE": "1"}}  # fmt: skip
    first = losses(job.run(2, "job", 4, **options))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "iter_0000002", "iter_0000004", "latest_checkpointed_iteration.txt",
    ]  # fmt: skip
    assert not (tmp_path / "A").exists() or not list((tmp_path / "A").glob("ckptd*"))
    log = job.run(2, "job", 6, **options)
    assert said(log, 0, "began at") == [["4"]]
    whole = losses(job.run(2, "whole", 6))
    assert first | losses(log) == pytest.approx(whole, rel=1e-5)


@SLOW
def test_the_hook_makes_megatrons_own_loop_use_libckpt(job, tmp_path):
    """With a stand-in for megatron.training, which wants GPUs."""
    directory = tmp_path / "checkpoints"
    options = {"directory": str(directory), "hook": True}
    whole = losses(job.run(2, "whole", 5))
    job.killed(2, "job", 3, **options)
    log = job.run(2, "job", 5, **options)
    (began,) = said(log, 0, "began at")
    assert began in (["3"], ["2"])
    assert "stock" not in log
    assert said(log, 0, "consumed") == [[str(int(began[0]) * 4), str(int(began[0]) * 1000)]]
    check_losses(log, whole, range(int(began[0]) + 1, 6))
    assert folders_in(directory) == ["iter_0000002", "iter_0000004"]
    state = torch.load(directory / "iter_0000004/mp_rank_00/model_optim_rng.pt", weights_only=False)
    assert state["args"].consumed_train_samples == 16
    options["environment"] = {"LIBCKPT_DISABLE": "1"}
    log = job.run(2, "job", 6, **options)
    assert said(log, 0, "began at") == [["4"]]
    assert log.count("stock load") == log.count("stock save 6") == 2


class Hollow:
    """As NVRx's TensorAwareStateDict: tensors that may be taken out and put back."""

    def __init__(self, tensors, text):
        self.parts, self.text = tensors, text
        self.is_on_device = True

    def pop_tensors(self):
        found, self.parts = self.parts, None
        return found

    def insert_tensors(self, tensors):
        self.parts = list(tensors)

    def restore_tensor_device(self, non_blocking=True):
        self.is_on_device = True


def test_the_local_manager_stands_in_for_that_of_nvrx(runtime, tmp_path):
    from libckpt.megatron import LocalCheckpointManager

    manager = LocalCheckpointManager(tmp_path / "local", session_id="s")
    assert manager.find_latest() == -1
    parts = [torch.arange(5.0), torch.ones(3, dtype=torch.bfloat16)]
    state = Hollow(parts, "text")
    assert manager.save(state, 1) is None
    assert state.parts[0] is parts[0]  # It is as it was.
    manager.session.wait(1, "committed")
    parts[0] += 1
    request = manager.save(state, 2, is_async=True)
    finalized = []
    request.add_finalize_fn(lambda: finalized.append(True))
    assert request.async_fn is None
    for finalize in request.finalize_fns:
        finalize()
    assert finalized
    manager.session.wait(2, "committed")
    manager.session.abandon()

    manager = LocalCheckpointManager(tmp_path / "local", session_id="s")
    assert manager.find_latest() == 2
    found, name = manager.load()
    assert name == (2, 0, "s")
    assert found.text == "text"
    assert all(torch.equal(a, b) for a, b in zip(found.parts, parts, strict=True))
    assert manager.local_ckpt_dir == tmp_path / "local" / "s" / "0"
    manager.session.close()


def test_a_model_that_is_not_megatrons_trains_on_without_memory(runtime, caplog):
    from libckpt import megatron

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    easy = megatron.initialize_easyckpt(1, 0, 0, job="other")
    assert megatron.load_checkpoint(model, optimizer, None) == 0
    for iteration in (1, 2):
        megatron.save_checkpoint_if_needed(iteration, model, optimizer, None)
    messages = [record.message for record in caplog.records]
    told = [message for message in messages if "not captured in memory" in message]
    assert len(told) == 1
    assert "Linear, which has no sharded_state_dict()" in told[0]
    easy.close()
