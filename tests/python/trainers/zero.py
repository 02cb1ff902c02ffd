"""Ranks under DeepSpeed, to be killed and started again in any number.

zero.py RANKS OPTIONS: OPTIONS is JSON: stage, dtype, job, dir, folder, steps, batch, micro, load,
save_at, hold_at, stock, universal, seed: of the weights that a restore replaces; waits: so long for
each step to be committed; attachments: so often attach is called; resume: for the resume of
libckpt.deepspeed, in the place of load_checkpoint.
"""

import hashlib
import json
import logging
import os
import signal
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import doors
import ports
import torch
from doors import say

logging.getLogger("libckpt").setLevel(logging.INFO)


class Model(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(101, 31)
        self.frozen = torch.nn.Linear(31, 31)
        self.frozen.requires_grad_(False)
        self.middle = torch.nn.Linear(31, 67)
        self.norm = torch.nn.BatchNorm1d(67)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.last = torch.nn.Linear(67, 101, bias=False)
        self.dropout = torch.nn.Dropout(0.0)

    def forward(self, tokens, wanted):
        hidden = self.middle(self.frozen(self.embedding(tokens)))
        hidden = self.dropout(torch.relu(hidden) * self.scale)
        return torch.nn.functional.cross_entropy(self.last(hidden).float(), wanted)


def config_of(options, accumulation):
    config = {
        "train_batch_size": options["batch"],
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {"stage": options["stage"]},
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR",
                      "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 20}},
        "gradient_clipping": 1.0,
        "steps_per_print": 1000000,
        "zero_allow_untested_optimizer": True,
    }
    if options["stage"] == 3:
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 40
    config["zero_optimization"].update(options.get("zero", {}))
    if options.get("dtype") == "bf16":
        config["bf16"] = {"enabled": True}
    if options.get("dtype") == "fp16":  # Its first steps overflow.
        config["fp16"] = {"enabled": True, "initial_scale_power": 40, "loss_scale_window": 2,
                          "hysteresis": 1, "consecutive_hysteresis": True}  # fmt: skip
    if options.get("universal"):
        config["checkpoint"] = {"load_universal": True}
    return config


def digest(engine):
    """A digest of all weights as whole tensors, and of the optimizer's state. All ranks call it."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    total = hashlib.sha256()
    base = getattr(engine.optimizer, "optimizer", engine.optimizer)
    keys = ("exp_avg", "exp_avg_sq") if base.state else ()
    if keys and hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._lazy_init_hp_params_optimizer_state()  # Stock loads leave it to a step.
    copies = {}  # By id of a parameter, its fp32 copy, with ZeRO 0.
    if hasattr(engine.optimizer, "fp32_groups"):
        for own, group in zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups):
            copies |= {id(parameter): copy for parameter, copy in zip(own, group)}
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            parts = [safe_get_full_fp32_param(parameter)]
            parts += [safe_get_full_optimizer_state(parameter, key) for key in keys]
        else:
            master = copies.get(id(parameter), parameter)
            parts = [master, *(base.state[master][key] for key in keys)]
        for part in [part for part in parts if part is not None]:
            total.update(name.encode() + part.detach().float().flatten().numpy().tobytes())
    return total.hexdigest()[:16]


def batch_of(step, options, rank, world, accumulation):
    """The micro batches of this rank, of a batch that does not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, 101, (options["batch"],), generator=generator)
    size = options["batch"] // accumulation
    for number in range(accumulation):
        own = tokens[number * size : (number + 1) * size]
        own = own[rank * size // world : (rank + 1) * size // world]
        yield own, (own * 7 + 3) % 101


def train(options):
    # It compiles a kernel.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if options.get("dtype") == "fp16":  # Torch computes with it here, which DeepSpeed denies.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    steps = options.get("accumulation", 1)
    if options.get("micro"):
        steps = options["batch"] // (options["micro"] * world)
    model = Model(options.get("seed", 1))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config_of(options, steps)
    )
    progress = {"losses": []}
    if options.get("stock"):
        doors.uninstall()
    else:
        import libckpt.deepspeed

        given = {
            "client_state": lambda: progress,
            "metrics": lambda: {"loss": progress["losses"][-1]},
            **options.get("attach", {}),
        }
        for _ in range(options.get("attachments", 1)):
            libckpt.deepspeed.attach(engine, job=options["job"], dir=options.get("dir"), **given)
    if options.get("resume") is not None:
        say("resumed", libckpt.deepspeed.resume(engine, **options["resume"]))
    elif options.get("folder"):
        path, state = engine.load_checkpoint(options["folder"], **options.get("load", {}))
        say("loaded", path)
        progress["losses"] = list((state or {}).get("losses", []))
    say("began at", engine.global_steps, digest(engine))
    while engine.global_steps < options["steps"]:
        total = torch.zeros(())
        for number, (tokens, wanted) in enumerate(
            batch_of(engine.global_steps, options, rank, world, steps), 1
        ):
            loss = engine(tokens, wanted)
            engine.backward(loss)
            total += loss.detach() / steps / world
            if number == steps:  # Before the step, which captures it.
                torch.distributed.all_reduce(total)
                progress["losses"].append(round(total.item(), 5))
            engine.step()
        step = engine.global_steps
        if not options.get("stock") and hasattr(engine, "_libckpt"):
            session = engine._libckpt.memory.session
            try:
                session.wait(step, "committed", options.get("waits", 5))
            except libckpt.CheckpointError as error:
                say("not committed", step, error)
        if options.get("dtype") == "fp16":
            say("scale", step, engine.optimizer.loss_scale, engine.skipped_steps)
        say("made", step, digest(engine), progress["losses"][-1], engine.get_lr()[0])
        if step in options.get("save_at", ()):
            engine.save_checkpoint(options["folder"], client_state=progress,
                                   **options.get("save", {}))  # fmt: skip
            say("saved", step, os.path.exists(f"{options['folder']}/global_step{step}"))
        if step == options.get("universal_at"):
            libckpt.deepspeed.write_universal(engine, options["folder"], client_state=progress)
        if step == options.get("hold_at"):
            signal.pause()
    say("losses", *progress["losses"])
    say("attached", hasattr(engine, "_libckpt"))
    if options.get("end") and not options.get("stock"):
        getattr(libckpt.deepspeed, options["end"])(engine)
    ports.leave()


def main(ranks, options):
    options = json.loads(options)
    children = []
    for rank in range(int(ranks)):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks,
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options["port"]),
                              OMP_NUM_THREADS="1", LOCAL_SIZE=ranks)  # fmt: skip
            torch.set_num_threads(1)
            train(options)  # An exception ends the process as any other's.
            sys.stderr.flush()
            os._exit(0)
        children.append(child)
        os.write(1, f"process {rank} {child}\n".encode())
    results = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(0 if not any(results) else 1)
