"""torch: what a save holds the training loop, against torch.save and DCP's async_save.

All of one state, in one run, in pairs. Between the measurements the bench waits for the
work behind a save, and does not count it, for either side.
"""

import itertools
import os
import resource
import shutil
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import libckpt
from libckpt import _programs
from harness import Bar, Harness, seconds_of

TENSOR_BYTES = 16 << 20
SMALL_COUNT, SMALL_BYTES = 10_000, 4 << 10
WAIT = 300.0


class Model(torch.nn.Module):
    """Parameters of one size; an optimizer without state owns them all."""

    def __init__(self, count, each):
        super().__init__()
        parts = (torch.nn.Parameter(torch.rand(each // 4)) for _ in range(count))
        self.parts = torch.nn.ParameterList(parts)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def change(self):
        with torch.no_grad():
            for part in self.parts:
                part[0] += 1

    def items(self):
        return {"model": self}

    def state(self):
        return {"model": self.state_dict()}


class Trained(Model):
    """The same with AdamW, whose state is saved too, and a learning rate that changes."""

    def __init__(self, count, each):
        super().__init__(count, each)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        for part in self.parts:
            part.grad = torch.rand_like(part)

    def change(self):
        self.optimizer.step()
        self.optimizer.param_groups[0]["lr"] *= 0.999

    def items(self):
        return {"model": self, "optimizer": self.optimizer}

    def state(self):
        return {"model": self.state_dict(), "optimizer": self.optimizer.state_dict()}


class Ours:
    """A session, whose every save goes on to storage when it has a directory."""

    def __init__(self, scratch, model, name, is_guarded=False, is_stored=True, **options):
        directory = scratch / name if is_stored else None
        interval = 1 if is_stored else None
        self.session = libckpt.init(name, directory, save_storage_interval=interval, keep=1,
                                    log_file_path=str(scratch / "log"), raise_on_error=True,
                                    **options)  # fmt: skip
        if is_guarded:
            self.session.guard(model.optimizer)
        self.model, self.items = model, model.items()
        self.level = "durable" if is_stored else "committed"
        self.step = 0

    def save(self, is_held_to_the_end=False):
        """The time for which the call, and with a guard the work after it, held the loop."""
        self.model.change()
        self.step += 1
        tickets = []

        def hold():
            tickets.append(self.session.save(self.step, self.items))
            if is_held_to_the_end:
                self.session.finish_capture()

        held = seconds_of(hold)
        assert tickets[0].outcome == "started", tickets
        self.session.wait(self.step, self.level, WAIT)
        return held

    def save_and_guard(self):
        return self.save(is_held_to_the_end=True)

    def load(self):
        took = seconds_of(lambda: self.session.restore(self.items))
        self.save()  # Training got on, and the next restore has another step.
        return took


class Dcp:
    """async_save into a directory that is new each time."""

    def __init__(self, scratch, model, **options):
        self.scratch, self.model, self.options = scratch, model, options
        self.numbers = itertools.count()
        self.faults = []  # Pages that were touched for the first time, of each save.

    def save(self):
        self.model.change()
        path = self.scratch / f"dcp-{next(self.numbers)}"
        answers = []

        def hold():
            answers.append(dcp.async_save(self.model.state(), checkpoint_id=path, **self.options))

        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = seconds_of(hold)
        self.faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        answer = answers[0]
        getattr(answer, "upload_completion", answer).result(WAIT)
        shutil.rmtree(path)
        return held


class Stock:
    def __init__(self, scratch, model):
        self.path, self.model = scratch / "stock.pt", model

    def save(self):
        self.model.change()

        def hold():
            with open(self.path, "wb") as file:
                torch.save(self.model.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())

        return seconds_of(hold)

    def load(self):
        kept = []
        return seconds_of(lambda: kept.append(torch.load(self.path)))


def stager(is_asynchronous=False):
    options = {"use_pinned_memory": False, "use_shared_memory": False,
               "use_async_staging": is_asynchronous, "use_non_blocking_copy": False}  # fmt: skip
    return DefaultStager(StagingOptions(**options))


def memcpy_of(model):
    source = [part.detach() for part in model.parts]
    target = [torch.zeros_like(part) for part in source]

    def copy():
        for part, into in zip(source, target):
            into.copy_(part)

    return lambda: seconds_of(copy)


def measure_large(harness, scratch, model):
    ours, stock = Ours(scratch, model, "large"), Stock(scratch, model)
    bar = Bar("B2", "stall: torch.save and fsync / save()", 20, 10)
    harness.compare(bar, ours.save, stock.save)
    harness.compare(Bar("B3", "stall: async_save, default / save()", 8, 4), ours.save,
                    Dcp(scratch, model, no_dist=True).save)  # fmt: skip
    cached = Dcp(scratch, model, no_dist=True, async_stager=stager())
    bar = Bar("B3b on", "stall: async_save, warm stager / save(), checksum on", 1.3, 1.0)
    harness.compare(bar, ours.save, cached.save)
    harness.compare(Bar("B15", "torch.load, warm / restore from memory, verified", 9, 6),
                    ours.load, stock.load)  # fmt: skip
    ours.session.close()

    deferred = Ours(scratch, model, "deferred", checksum_in_copy=False)
    harness.compare(Bar("B3b", "stall: the same / save(), checksum deferred", 1.5, 1.1),
                    deferred.save, cached.save)  # fmt: skip
    deferred.session.close()

    guarded = Ours(scratch, model, "guarded", is_guarded=True)
    behind = Dcp(scratch, model, no_dist=True, async_stager=stager(is_asynchronous=True))
    harness.compare(Bar("B3c", "call: async_save, asynchronous staging / save(), guarded", 20, 8),
                    guarded.save, behind.save)  # fmt: skip
    harness.compare(Bar("B3c+", "save() and guard / memcpy", 0.75, 1.0, is_higher_better=False),
                    guarded.save_and_guard, memcpy_of(model))  # fmt: skip
    guarded.session.close()


def measure_process(harness, scratch, model):
    """With a process of its own async_save wants a process group."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    ours = Ours(scratch, model, "process", rank=0, world_size=1)
    theirs = Dcp(scratch, model, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
    bar = Bar("B3 pr", "stall: async_save, with a process / save(), checksum on", 1.5, 1.2)
    harness.compare(bar, ours.save, theirs.save)
    # Its staging memory comes from malloc, which mostly has that of the save before.
    pages = harness.bytes // resource.getpagesize()
    warm = sum(faults < pages // 2 for faults in theirs.faults)
    harness.add_condition(f"B3 pr: {warm} of {len(theirs.faults)} saves staged into warm memory")
    ours.session.close()
    torch.distributed.destroy_process_group()


def measure_small(harness, scratch):
    model = Model(SMALL_COUNT, SMALL_BYTES)
    ours = Ours(scratch, model, "small")
    harness.compare(Bar("B4", "10,000 of 4 KiB: async_save, default / save()", 30, 15), ours.save,
                    Dcp(scratch, model, no_dist=True).save, SMALL_COUNT * SMALL_BYTES)  # fmt: skip
    ours.session.close()

    trained = Trained(SMALL_COUNT, SMALL_BYTES)
    trained.change()
    ours = Ours(scratch, trained, "trained")
    bar = Bar("B4 AdamW", "the same with AdamW, 40,000 tensors", 15, 6)
    harness.compare(bar, ours.save, Dcp(scratch, trained, no_dist=True).save,
                    4 * SMALL_COUNT * SMALL_BYTES)  # fmt: skip
    ours.session.close()


def main():
    warnings.filterwarnings("ignore")
    harness = Harness("torch", __doc__)
    scratch = tempfile.TemporaryDirectory(prefix="torch-", dir=harness.directory)
    with scratch:
        path = harness.directory / scratch.name
        os.environ["LIBCKPT_RUNTIME_DIR"] = str(path / "runtime")
        harness.add_condition(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
        measure_small(harness, path)
        model = Model(harness.bytes // TENSOR_BYTES, TENSOR_BYTES)
        measure_large(harness, path, model)
        measure_process(harness, path, model)
        _programs.run("ckpt", "stop", "--no-flush")
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
