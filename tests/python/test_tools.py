"""Goal: the commands that change what lies on storage, and what a session finds by a path, do what
they say, with files that stock torch and safetensors wrote.

Method: real sessions save, the commands run as programs, and other sessions load what they left.
"""

import collections
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")

import safetensors.torch  # noqa: E402

import libckpt  # noqa: E402
from libckpt import _programs, errors  # noqa: E402


def ckpt(*arguments, code=0):
    done = _programs.run("ckpt", *map(str, arguments), "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def model(seed):
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.Linear(300, 5, bias=False))
    made.register_buffer("count", torch.tensor(seed))
    return made


def is_same(one, other):
    state = other.state_dict()
    return all(torch.equal(value, state[name]) for name, value in one.state_dict().items())


@pytest.fixture
def options(tmp_path):
    return {"runtime_dir": tmp_path / "daemon", "memory_budget": "256MiB"}


def saved(place, step, options, metrics=None, **more):
    """A directory with one more checkpoint, and the model that is in it."""
    trained = model(step)
    with libckpt.init("tools", place, replicas=1, **options, **more) as session:
        session.restore_or({"model": model(0)})
        session.save(step, {"model": trained}, wait=30, metrics=metrics)
        session.wait(step, "durable")
    return trained


class TestImport:
    def restored(self, place, options):
        fresh = model(99)
        with libckpt.init(pathlib.Path(place).name, place, **options) as session:
            restored = session.restore({"model": fresh})
            assert restored.step == 0
            session.abandon()
        return fresh

    def test_a_safetensors_file(self, tmp_path, options):
        trained = model(1)
        safetensors.torch.save_model(trained, str(tmp_path / "m.safetensors"))
        told = ckpt("import", tmp_path / "m.safetensors", tmp_path / "run")
        assert told["tensors"] == 4
        assert is_same(self.restored(tmp_path / "run", options), trained)

    def test_what_torch_saves(self, tmp_path, options):
        trained = model(2)
        torch.save(trained.state_dict(), tmp_path / "m.pt")
        assert ckpt("import", tmp_path / "m.pt", tmp_path / "run")["left_out"] == 0
        assert is_same(self.restored(tmp_path / "run", options), trained)

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_every_protocol_and_type(self, tmp_path, protocol):
        kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
                 torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
                 torch.uint16, torch.float8_e4m3fn]  # fmt: skip
        tensors = {str(kind): torch.arange(6).to(kind).reshape(2, 3) for kind in kinds}
        tensors["scalar"] = torch.tensor(2.5)
        tensors["row"] = torch.arange(12.0).reshape(3, 4)[1]
        tensors["nested"] = {"list": [torch.ones(2), 3, None], "text": "words"}
        tensors["parameter"] = torch.nn.Parameter(torch.ones(3))
        tensors["ordered"] = collections.OrderedDict(a=torch.zeros(1))
        torch.save(tensors, tmp_path / "m.pt", pickle_protocol=protocol)
        told = ckpt("import", tmp_path / "m.pt", tmp_path / "run", "--prefix", "")
        assert told["left_out"] == 3
        ckpt("export", tmp_path / "run", tmp_path / "out.safetensors")
        found = safetensors.torch.load_file(tmp_path / "out.safetensors")
        assert torch.equal(found["row"], tensors["row"])
        assert torch.equal(found["nested.list.0"], torch.ones(2))
        assert torch.equal(found["parameter"], torch.ones(3))
        assert torch.equal(found["ordered.a"], torch.zeros(1))
        for kind in kinds:
            assert found[str(kind)].dtype == kind
            both = [one.view(torch.uint8) for one in (found[str(kind)], tensors[str(kind)])]
            assert torch.equal(*both)

    def test_code_is_not_run(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return (pathlib.Path.touch, (tmp_path / "was-run",))

        torch.save({"w": torch.ones(2), "evil": Evil()}, tmp_path / "m.pt")
        told = ckpt("import", tmp_path / "m.pt", tmp_path / "run", code=1)
        assert "code is never run" in told["error"]["text"]
        torch.save(model(1), tmp_path / "whole.pt")
        told = ckpt("import", tmp_path / "whole.pt", tmp_path / "run", code=1)
        assert "it needs" in told["error"]["text"]
        assert not (tmp_path / "was-run").exists()
        assert not (tmp_path / "run").exists()

    def test_a_transposed_tensor_is_named(self, tmp_path):
        torch.save({"w": torch.ones(2, 3).t()}, tmp_path / "m.pt")
        told = ckpt("import", tmp_path / "m.pt", tmp_path / "run", code=1)
        assert 'tensor "w"' in told["error"]["text"]

    def test_a_model_of_several_files(self, tmp_path, options):
        trained = model(3)
        state, parts = trained.state_dict(), tmp_path / "hub"
        parts.mkdir()
        names = {name: f"model-{at}.safetensors" for at, name in enumerate(state)}
        for name, file in names.items():
            safetensors.torch.save_file({name: state[name]}, parts / file)
        index = {"metadata": {"total_size": 1}, "weight_map": names}
        (parts / "model.safetensors.index.json").write_text(json.dumps(index))
        ckpt("import", parts, tmp_path / "run")
        assert is_same(self.restored(tmp_path / "run", options), trained)


class TestRetention:
    def test_the_best_and_chosen_steps_stay(self, tmp_path, options):
        more = {"max_ckpt_num": 1, "keep_every": [{"every": 4, "until": 4}, {"every": 100}],
                "keep_best": 1, "best_metric": "loss", "save_storage_interval": 1}  # fmt: skip
        losses = {1: 0.5, 2: 0.1, 3: float("nan"), 4: 0.9, 5: torch.tensor(0.3), 6: None}
        with libckpt.init("tools", tmp_path / "run", replicas=1, **options, **more) as session:
            for step, loss in losses.items():
                metrics = {"loss": loss, "odd": object(), "large": 10**400, 7: 1.0}
                assert session.save(step, {"model": model(step)}, wait=30, metrics=metrics)
                session.wait(step, "durable")
        found = libckpt.list_published(tmp_path / "run").checkpoints
        assert [each.step for each in found] == [6, 4, 2]
        assert found[2].metrics == {"loss": 0.1}
        assert found[0].metrics == {}

    def test_options_are_checked(self, tmp_path, options):
        wrong_ones = [
            ({"keep_every": 5}, "max_ckpt_num"),
            ({"keep": 1, "keep_best": 2}, "best_metric"),
            ({"keep": 1, "keep_every": [{"every": 0}]}, "keep_every"),
        ]
        for wrong, word in wrong_ones:
            with pytest.raises(errors.InvalidArgument, match=word):
                libckpt.init("tools", tmp_path / "run", **options, **wrong)

    def test_gc(self, tmp_path, options):
        for step in (1, 2, 3):
            saved(tmp_path / "run", step, options, {"loss": step})
        shown = ckpt("gc", tmp_path / "run", "--keep", 1, "--keep-best", 1, "--best-metric", "loss",
                     "--dry-run", "--runtime-dir", options["runtime_dir"])  # fmt: skip
        assert [each["step"] for each in shown["checkpoints"]] == [2]
        assert len(libckpt.list_published(tmp_path / "run").checkpoints) == 3
        ckpt("gc", tmp_path / "run", "--keep", 1, "--runtime-dir", options["runtime_dir"])
        assert [each.step for each in libckpt.list_published(tmp_path / "run").checkpoints] == [3]
        told = ckpt("gc", tmp_path / "run", "--keep-best", 1, "--best-metric", "loss", code=2)
        assert "--keep" in told["error"]["text"]


class TestCopies:
    def test_the_job_goes_on_from_a_copy(self, tmp_path, options):
        trained = saved(tmp_path / "run", 3, options)
        told = ckpt("cp", tmp_path / "run", tmp_path / "copy")
        assert told["to"] == str(tmp_path / "copy" / "step-000000003")
        assert ckpt("cp", tmp_path / "run", tmp_path / "copy")["was_there"]
        fresh = model(0)
        with libckpt.init("tools", tmp_path / "copy", **options) as session:
            assert session.restore({"model": fresh}).step == 3
        assert is_same(fresh, trained)

    def test_places_that_are_none(self, tmp_path, options):
        saved(tmp_path / "run", 3, options)
        run, none = tmp_path / "run", tmp_path / "none"
        assert "lies there already" in ckpt("cp", run, run, code=2)["error"]["text"]
        assert "empty" in ckpt("cp", "", run, code=2)["error"]["text"]
        assert ckpt("cp", none, tmp_path / "copy", code=1)["error"]["code"] == "not found"


class TestFlush:
    def test_the_step_whose_save_has_just_begun_is_stored(self, tmp_path, options):
        with libckpt.init("flushed", tmp_path, **options) as session:
            for step in range(1, 6):
                assert session.save(step, {"model": model(step)}, wait=30)
                session.flush()
                found = libckpt.list_published(tmp_path).checkpoints
                assert found[0].step == step

    def test_metrics_that_are_no_dictionary_are_left_out(self, tmp_path, options, caplog):
        with libckpt.init("odd", tmp_path, **options) as session:
            assert session.save(1, {"model": model(1)}, wait=30, metrics=5)
            session.flush()
        assert "left out" in caplog.text

    def test_a_function_returns_them_for_a_save_that_is_due(self, tmp_path, options, caplog):
        asked = []

        def metrics_of(step):
            asked.append(step)
            return {"loss": step / 4}

        with libckpt.init("asked", tmp_path, save_mem_interval=2, **options) as session:
            for step in (1, 2):
                session.save_checkpoint_if_needed(
                    step, {"model": model(step)}, metrics=lambda step=step: metrics_of(step)
                )
            session.flush()
            (found,) = libckpt.list_published(tmp_path).checkpoints
            assert (asked, found.step, found.metrics) == ([2], 2, {"loss": 0.5})
            session.save(3, {"model": model(3)}, wait=30, metrics=lambda: 1 / 0)
            session.flush()
        assert "step 3: its metrics are left out" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        assert libckpt.list_published(tmp_path).checkpoints[0].step == 3


class TestPaths:
    def test_the_newest_below_a_parent(self, tmp_path, options):
        (tmp_path / "all").mkdir()
        saved(tmp_path / "all" / "one", 4, options)
        trained = saved(tmp_path / "all" / "two", 9, options)
        fresh = model(0)
        with libckpt.init("other", tmp_path / "new", **options) as session:
            for path in (tmp_path / "all", tmp_path / "all" / "two" / "step-000000009"):
                assert session.restore({"model": fresh}, path=path).step == 9
                assert is_same(fresh, trained)
            with pytest.raises(errors.NotFound):
                session.restore({"model": fresh}, path=tmp_path / "none")
            with pytest.raises(errors.InvalidArgument):
                session.restore({"model": fresh}, step=9, path=tmp_path / "all")
            session.restore({"model": fresh}, path=tmp_path / "all")
            session.save(10, {"model": fresh}, wait=30)
            session.wait(10, "durable")
        assert [each.step for each in libckpt.list_published(tmp_path / "new").checkpoints] == [10]

    def test_load_if_there_is_one(self, tmp_path, options, caplog):
        (tmp_path / "empty").mkdir()
        with libckpt.init("other", tmp_path / "new", **options) as session:
            assert session.restore_or({"model": model(0)}, 7, path=tmp_path / "empty") == 7
        assert "nothing is restored" in caplog.text  # The path may be mistyped.

    def test_damage_is_passed_over_and_told(self, tmp_path, options, caplog):
        trained = saved(tmp_path / "run", 3, options)
        saved(tmp_path / "run", 5, options)
        file = tmp_path / "run" / "step-000000005" / "rank-00000.safetensors"
        content = bytearray(file.read_bytes())
        content[5000] ^= 1
        file.chmod(0o600)
        file.write_bytes(content)
        fresh = model(0)
        with libckpt.init("other", tmp_path / "new", **options) as session:
            assert session.restore({"model": fresh}, path=tmp_path / "run").step == 3
        assert is_same(fresh, trained)
        assert "step 5 is passed over" in caplog.text

    def test_the_list(self, tmp_path, options):
        saved(tmp_path / "run", 3, options, {"loss": 0.25})
        (found,) = libckpt.list_published(tmp_path / "run").checkpoints
        assert (found.step, found.job, found.world_size) == (3, "tools", 1)
        assert found.metrics == {"loss": 0.25}
        assert not found.is_abandoned
        with pytest.raises(errors.NotFound):
            libckpt.list_published(tmp_path / "none")


def test_gc_keeps_what_the_job_itself_keeps(options, tmp_path):
    for step in range(1, 6):
        saved(tmp_path / "run", step, options, max_ckpt_num=9, keep_every="2")
    order = ("gc", tmp_path / "run", "--keep", 1, "--runtime-dir", options["runtime_dir"])
    shown = ckpt(*order, "--dry-run")
    assert shown["recorded"] and [each["step"] for each in shown["checkpoints"]] == [1, 3]
    assert ckpt(*order)["checkpoints"] == shown["checkpoints"]
    assert [each["step"] for each in ckpt("ls", tmp_path / "run")["checkpoints"]] == [2, 4, 5]
    ckpt(*order, "--keep-every", "none")
    assert [each["step"] for each in ckpt("ls", tmp_path / "run")["checkpoints"]] == [5]
