"""Goal: the code blocks of the guides run as they stand.

Method: the Python of each guide is taken out of it, block by block, and run as one program in a
folder of its own, behind a few lines that make what the guide takes for given: a model, an
optimizer, a loop's step. Lines between the blocks do what the text between them says. One process,
over gloo; torchft's Manager is in test_examples.py, here only the call is looked at. The guides on
adapters and buckets have tests of their own.
"""

import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

DOCUMENTS = pathlib.Path(__file__).parents[2]
GUIDES = DOCUMENTS / "libckpt" / "docs" / "guide"
ELSEWHERE = {"adapters", "buckets"}
SECONDS_MAX = 300  # Only so that one that hangs ends.

TORCH = """
import json, os, pathlib, shutil, subprocess
import safetensors.torch, torch
import torch.distributed as dist
import libckpt
from torch.nn.parallel import DistributedDataParallel
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, RANK="0", WORLD_SIZE="1",
                  LOCAL_RANK="0", LOCAL_SIZE="1", DS_ACCELERATOR="cpu")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, batch):
        for layer in self.layers:
            batch = layer(batch)
        return batch.square().mean()

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
progress, start, steps, step, epoch, loss = {"epoch": 0}, 0, 3, 1, 0, 0.5

def train_one_step(batch=None):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).backward()
    optimizer.step()
    scheduler.step()

train = train_one_step
"""

# The last step of the loop, too.
STORED = "session.is_closed and libckpt.list_published('checkpoints').checkpoints[0].step == steps"
CASES = {  # Before the first block, and behind each.
    "README": (
        "",
        "session.close(); shutil.rmtree('checkpoints')",
        f"assert start == 0 and {STORED}",
    ),
    "python/README": ("", f"assert {STORED}"),
    "accelerate": (
        """
import accelerate
class Progress:
    step = epoch = batch = 0
    def state_dict(self):
        return {"step": self.step, "epoch": self.epoch, "batch": self.batch}
    def load_state_dict(self, state):
        vars(self).update(state)
accelerator = accelerate.Accelerator(cpu=True, project_config=accelerate.utils.ProjectConfiguration(
    project_dir="project", automatic_checkpoint_naming=True))
progress, epochs, loader = Progress(), 2, torch.utils.data.DataLoader(torch.ones(8, 4))
""",
        "assert progress.step == 16 and state._memory.session.counts()['failed'] == 0",
    ),
    "dcp": (
        "dist.init_process_group('gloo'); state = {'model': model.state_dict()}",
        "save.result()\nassert storage.find('ckpt://my-run/latest') == 3",
    ),
    "ddp": (
        "steps = 9",
        f"assert {STORED}\n"
        "model = model.module; saved = model.state_dict()\n"
        "before = {name: tensor.clone() for name, tensor in saved.items()}; model = Model()\n"
        "pathlib.Path('checkpoints/step-000001000').symlink_to('step-000000009')",
        "assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())",
    ),
    "deepspeed": (
        """
import sys, deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # It compiles a kernel.
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
config = {"train_batch_size": 1, "zero_optimization": {"stage": 1},
          "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
loader = torch.ones(2, 1, 4)
""",
        "assert engine.global_steps == 2",
        "assert config['gradient_accumulation_steps'] == 128",
        "assert os.path.exists('checkpoints/global_step2_universal/zero')",
    ),
    "dlrover": ("", f"assert {STORED}"),
    "fsdp": (
        "from torch.distributed.fsdp import fully_shard\nmesh = None",
        f"assert {STORED}",
    ),
    "lightning": (
        """
import functools, lightning.pytorch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
Trainer = functools.partial(lightning.pytorch.Trainer, max_steps=3, accelerator="cpu", devices=1,
                            logger=False)
model, loader = BoringModel(), torch.utils.data.DataLoader(RandomDataset(32, 64))
""",
        "assert trainer.global_step == 3",
    ),
    "megatron": (
        f"""
import functools, sys
sys.path.insert(0, {str(DOCUMENTS / "tests" / "python" / "trainers")!r})
import cuda_to_cpu, gpt
cuda_to_cpu.enter()
dist.init_process_group("gloo")
job = gpt.Gpt({{}})
model, optimizer, opt_param_scheduler, train_iters = job.model, job.optimizer, job.scheduler, 2
def train_one_step():
    job.step(iteration)
""",
        "assert iteration == 2",
        "pass",
        "libckpt.megatron.current().close()\n"
        "(found,) = libckpt.list_published('checkpoints/own').checkpoints\n"
        "assert found.metrics == {'loss': 0.5}",
        "pass",
    ),
    "options": (
        "items = {'model': model, 'optimizer': optimizer}; train_one_step()",
        "session.close()",
        "session.close(); session = libckpt.init('gpt2', 'checkpoints')",
        "assert step == 1; session.close()\n"
        "ckpt = pathlib.Path(libckpt.__file__).parent / 'bin' / 'ckpt'\n"
        "words = ['checkpoints', 'model.safetensors', '--strip', 'model.']\n"
        "subprocess.run([ckpt, 'export', *words], check=True)",
        "pass",
    ),
    "pytorch": (
        "loader, start, state, exp_dir = [1, 2], 500, {'step': 1}, pathlib.Path('out')\n"
        "exp_dir.mkdir()",
        "libckpt.torch.wait()\nassert json.loads((exp_dir / 'state.json').read_text()) == state\n"
        "torch.load(exp_dir / 'model.pt'); state = {'step': 2}",
        "libckpt.torch.wait()\nassert json.loads((exp_dir / 'state.json').read_text()) == state",
        "assert start == 0; pathlib.Path('runs').mkdir()\n"
        "base = libckpt.init('base', dir='runs/base', save_storage_interval=1)\n"
        "base.save(1, {'model': model}).durable.result(60)",
        "assert start == 0",
    ),
    "torchft": (
        """
import types
from torchft.checkpointing import CheckpointTransport
torchft = types.SimpleNamespace(Manager=lambda **given: given)
pg = load_state_dict = state_dict = None
""",
        "transport = manager['checkpoint_transport']\n"
        "assert isinstance(transport, CheckpointTransport); transport.shutdown()",
    ),
    "torchtitan": (
        "",
        """
import dataclasses, types
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
dist.init_process_group("gloo")
class Plain(types.SimpleNamespace):
    def state_dict(self):
        return {"count": self.count}
    def load_state_dict(self, state):
        self.count = state["count"]
settings = default_adamw()
settings.implementation = "foreach"
for begun in (0, 3):
    train_state, optimizers = Plain(count=0), settings.build(model_parts=[model])
    manager = dataclasses.replace(checkpoint, interval=5).build(
        dataloader=Plain(count=1), model_parts=[model], optimizers=optimizers,
        lr_schedulers=LRSchedulersContainer(optimizers, lambda step: 1.0),
        states={"train_state": train_state}, sd_adapter=None, base_folder=".")
    assert (manager.load(), train_state.count) == (begun > 0, begun)
    while train_state.count < begun + 3:
        train_state.count += 1
        manager.save(train_state.count)
        manager._session.wait(train_state.count, "committed")
    manager.close()
assert os.listdir("checkpoint") == ["step-5"]
""",
    ),
    "torch_checkpointing": (
        "",
        "found = manager.load('checkpoints/step-500', into={'model': Model().state_dict()})\n"
        "assert all(torch.equal(found['model'][name], part) for name, part in "
        "model.state_dict().items())",
    ),
    "transformers": (
        """
import transformers
class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Model()
    def forward(self, batch):
        return {"loss": self.inner(batch)}
trainer = transformers.Trainer(Wrapped(), transformers.TrainingArguments(
    "out", use_cpu=True, max_steps=3, report_to=[], save_steps=2),
    train_dataset=[{"batch": torch.ones(4)}] * 8)
""",
        "assert trainer.state.global_step == 3",
    ),
}

JAX = """
import datetime, functools, os, typing
import jax, jax.numpy as jnp, numpy
import libckpt, libckpt.jax
jax.distributed.initialize = functools.partial(
    jax.distributed.initialize, f"127.0.0.1:{PORT}", 1, 0)  # Here nobody is there to ask for them.
class State(typing.NamedTuple):
    step: jax.Array
    weights: jax.Array
state, batch, steps = State(numpy.int32(0), numpy.ones(8, "f4")), numpy.ones(8, "f4"), 3
@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, batch):
    return State(state.step + 1, state.weights + batch)
"""

# The guide's Trainer is made of these parts of Levanter and equinox; Levanter itself is large.
LEVANTER = """
assert int(load_checkpoint(state, 'checkpoints').step) == 1000
import contextlib, dataclasses, types
class TrainerState(State):
    saveable_state = property(lambda self: State(*self))
@dataclasses.dataclass
class Config:
    checkpointer: object = None
    load_checkpoint: object = None
class Trainer(contextlib.nullcontext):
    def __init__(self, config, optimizer, loss_function):
        super().__init__(self)
        self.config = config
    def initial_state(self, key, model_init):
        assert self.config.load_checkpoint is False
        return model_init()
    def train(self, state, batches):
        on_step = self.config.checkpointer.create("run").on_step
        for batch in batches:
            state = TrainerState(*train_step(State(*state), batch))
            on_step(tree=state.saveable_state, step=int(state.step), force=False)
        on_step(tree=state.saveable_state, step=int(state.step), force=True)
levanter = types.SimpleNamespace(
    initialize=lambda config: None, checkpoint=types.SimpleNamespace(CheckpointerConfig=object))
equinox = types.SimpleNamespace(combine=lambda saved, rest: TrainerState(*saved))
loader = types.SimpleNamespace(iter_from_step=lambda step: [batch] * 2 if step == 1000 else [])
config, key, optimizer, loss_function = Config(), None, None, None
def make_model():
    return TrainerState(numpy.int32(0), numpy.ones(8, "f4"))
"""

JAX_CASES = {
    "jax": ("", "assert checkpointer.session.is_closed and int(state.step) == 3"),
    "levanter": (
        "os.environ['LIBCKPT_SAVE_MEM_INTERVAL'] = '1'; steps = 1000",
        LEVANTER,
        "assert int(load_checkpoint(state, 'checkpoints').step) == 1002",
    ),
}


def path_of(name):
    documents = {"README": DOCUMENTS / "README.md",
                 "python/README": DOCUMENTS / "bindings" / "python" / "README.md"}  # fmt: skip
    return documents.get(name, GUIDES / f"{name}.md")


def blocks_of(name):
    found = re.findall(r"```python\n(.*?)```", path_of(name).read_text(), re.DOTALL)
    return [textwrap.dedent(block).replace('"nccl"', '"gloo"') for block in found]


def run(name, common, cases, folder):
    from trainers import ports

    before, *behind = cases[name]
    blocks = blocks_of(name)
    assert len(blocks) == len(behind)
    parts = [part for pair in zip(blocks, behind, strict=True) for part in pair]
    script = folder / "guide.py"
    with ports.reserve() as reserved:
        port = f"PORT = {str(reserved.getsockname()[1])!r}"
    script.write_text("\n".join([port, common, before, *parts, "print('guide: all of it ran')"]))
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True,
                          timeout=SECONDS_MAX, check=False)  # fmt: skip
    assert "guide: all of it ran" in done.stdout, (done.stdout + done.stderr)[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_its_blocks_run(name, runtime, tmp_path):
    pytest.importorskip("torch")
    needed = {"megatron": "megatron.core", "pytorch": "torch", "README": "torch"}.get(name, name)
    if needed in ("accelerate", "deepspeed", "lightning", "torchft", "torchtitan",
                  "torch_checkpointing", "transformers", "megatron.core"):  # fmt: skip
        pytest.importorskip(needed)
    run(name, TORCH, CASES, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", JAX_CASES)
def test_its_blocks_run_with_jax(name, runtime, tmp_path):
    pytest.importorskip("jax")
    run(name, JAX, JAX_CASES, tmp_path)


def test_each_guide_with_code_is_run():
    with_code = {path.stem for path in GUIDES.glob("*.md") if blocks_of(path.stem)}
    assert with_code - ELSEWHERE == (CASES.keys() | JAX_CASES.keys()) - {"README", "python/README"}
