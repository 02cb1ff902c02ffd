"""A loop over accelerate, to be killed at any step.

acc.py PROJECT KIND OPTIONS: KIND is stock or libckpt; OPTIONS is JSON: "ranks", "steps", "limit"
(total_limit), "resume" (how stock resumes: "state" calls load_state()), "every" (save_state),
"seedable", "ema" (of the weights, a registered object), "sharded" (FSDP2), "accumulate" (so many
batches in an update), "hold" (after that step), "waits" (this long for each step to be committed),
"gpu", "width" (of the model), "settles" (its folders are there before it holds), "nodes" (the
environment of each rank, where each is on a node of its own) and "alike" (any number of ranks
computes the same). Each rank says "began STEP", "made STEP LOSS" and, at the end, "weights DIGEST".
"""

import contextlib
import hashlib
import json
import os
import pathlib
import signal

import accelerate
import doors
import torch
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration

BATCH = 4


class Progress:
    """A registered object."""

    def __init__(self):
        self.step = self.epoch = self.batch = 0
        self.losses = []

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


class Average:
    def __init__(self, model):
        self.parts = [part.detach().clone() for part in model.parameters()]

    def update(self, model):
        for mine, part in zip(self.parts, model.parameters(), strict=True):
            mine.lerp_(part.detach(), 0.1)

    def state_dict(self):
        return {"parts": self.parts}

    def load_state_dict(self, state):
        for mine, part in zip(self.parts, state["parts"], strict=True):
            mine.copy_(part)


def digest(tensors):
    total = hashlib.sha256()
    for part in tensors:
        part = part.full_tensor() if hasattr(part, "full_tensor") else part
        total.update(part.detach().float().cpu().numpy().tobytes())
    return total.hexdigest()


def make_accelerator(project, options):
    more = {}
    if options.get("sharded"):
        from accelerate.utils import FullyShardedDataParallelPlugin

        doors.pretend_gpus(accelerate.PartialState(cpu=True))
        os.environ["FSDP_AUTO_WRAP_POLICY"] = "NO_WRAP"
        more["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2, state_dict_type="SHARDED_STATE_DICT"
        )
    configuration = ProjectConfiguration(project_dir=project, automatic_checkpoint_naming=True,
                                         total_limit=options.get("limit", 2))  # fmt: skip
    is_alike = options.get("alike", False)
    if is_alike:
        more["step_scheduler_with_optimizer"] = False  # Else it steps once for each rank.
    loaders = DataLoaderConfiguration(use_seedable_sampler=options.get("seedable", is_alike),
                                      data_seed=1 if is_alike else None)  # fmt: skip
    return accelerate.Accelerator(cpu=not options.get("gpu"), project_config=configuration,
                                  dataloader_config=loaders,
                                  gradient_accumulation_steps=options.get("accumulate", 1),
                                  **more)  # fmt: skip


def train(project, kind, options):
    accelerator = make_accelerator(project, options)
    accelerate.utils.set_seed(7, device_specific=True)
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(56, 16, generator=generator),
                                          torch.randn(56, 4, generator=generator))  # fmt: skip
    torch.manual_seed(5)
    is_alike = options.get("alike", False)
    width = options.get("width", 64)
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(),
                                torch.nn.Dropout(0.0 if is_alike else 0.2),
                                torch.nn.Linear(width, 4))  # fmt: skip
    torch.manual_seed(50 + accelerator.process_index)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    batch = BATCH // accelerator.num_processes if is_alike else BATCH
    loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    progress, average = Progress(), Average(model)
    accelerator.register_for_checkpointing(progress)
    if options.get("ema"):
        accelerator.register_for_checkpointing(average)
    state = None
    if kind == "libckpt":
        import libckpt.accelerate

        state = libckpt.accelerate.attach(accelerator)
        state.resume()
    elif pathlib.Path(project, "checkpoints").is_dir() and options.get("resume") == "state":
        accelerator.load_state()
        numbers = [int(path.name[11:]) for path in pathlib.Path(project, "checkpoints").iterdir()]
        accelerator.project_configuration.iteration = max(numbers) + 1
    doors.say("began", progress.step)
    loop(accelerator, state, options, progress, average, (model, optimizer, loader, scheduler))
    doors.say("losses", hashlib.sha256(repr(progress.losses).encode()).hexdigest())
    average_told = digest(average.parts)[: 8 * options.get("ema", 0)]
    doors.say("weights", digest(model.parameters()), average_told)
    accelerator.end_training()


def loop(accelerator, state, options, progress, average, prepared):
    model, optimizer, loader, scheduler = prepared
    model.train()
    while progress.step < options.get("steps", 30):
        loader.set_epoch(progress.epoch)
        batches = accelerator.skip_first_batches(loader, progress.batch)
        if progress.batch == 0:
            batches = loader
        for features, wanted in batches:
            with accelerator.accumulate(model):
                noise = 0.0 if options.get("alike") else 0.01 * torch.randn(4).to(wanted.device)
                loss = (model(features) - wanted + noise).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not options.get("sharded"):
                average.update(model)
            progress.step += 1
            progress.batch += 1
            progress.losses.append(loss.item())
            if state is not None:
                ticket, patience = state.capture(progress.step), options.get("waits", 2)
                with contextlib.suppress(Exception):  # Another rank skipped it; or it is disabled.
                    ticket.committed.result(patience)  # Memory is to be newer than any folder.
            if progress.step % options.get("every", 5) == 0:
                accelerator.save_state()
            doors.say("made", progress.step, loss.item())
            if progress.step == options.get("hold"):
                if options.get("settles"):
                    state.settle()
                hold(state)
            if progress.step == options.get("steps", 30):
                return
        progress.epoch += 1
        progress.batch = 0


def hold(state):
    """Until it is killed, once the newest step has no more need of this process."""
    if state is not None:
        state.finish_capture()
        session = state._memory.session
        with contextlib.suppress(Exception):  # It was skipped.
            session.wait(session.counts()["captured"], "committed")
        doors.say("held", session.latest)
    signal.pause()


def main(project, kind, options):
    options = json.loads(options)
    ranks = options.get("ranks", 1)
    if kind == "stock":
        doors.uninstall()
    if not options.get("gpu"):
        os.environ["ACCELERATE_USE_CPU"] = "true"
    nodes = options.get("nodes", ())
    if ranks > 1 or options.get("sharded") or nodes:
        doors.become_rank(ranks, nodes)
    train(project, kind, options)
