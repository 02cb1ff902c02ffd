"""Cells of a notebook that build an engine of DeepSpeed, attach a job and train, one after another.

cells.py OPTIONS: OPTIONS is JSON: port, folder, is_interactive, and detaches: the first cell's
engine before the second one's is attached.
"""

import json
import logging
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import ports
import torch
from doors import say

import libckpt.deepspeed

logging.getLogger("libckpt").setLevel(logging.INFO)

CONFIG = {
    "train_batch_size": 1, "zero_optimization": {"stage": 1}, "steps_per_print": 1000000,
    "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
}  # fmt: skip


def cell(number, options):
    model = torch.nn.Linear(4, 4)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    try:
        libckpt.deepspeed.attach(engine, job="job")
        engine.load_checkpoint(options["folder"])
    except libckpt.InvalidArgument as error:
        say("refused", error)
        return engine
    say("began", number, engine.global_steps)
    for _ in range(3):
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()
        if "_libckpt" in vars(engine):
            engine._libckpt.memory.session.wait(engine.global_steps, "committed")
    engine.save_checkpoint(options["folder"])
    return engine


def main(options):
    options = json.loads(options)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(options["port"]), LOCAL_SIZE="1")  # fmt: skip
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # It compiles a kernel.
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    if options["is_interactive"]:
        sys.ps1 = "In : "  # As IPython and the prompt have it.
    first = cell(1, options)
    if options.get("detaches"):
        libckpt.deepspeed.detach(first)
    second = cell(2, options)
    say("attached", *("_libckpt" in vars(engine) for engine in (first, second)))
    libckpt.deepspeed.wait(second)
    ports.leave()
