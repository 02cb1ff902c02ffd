"""State: all that a step has of an engine, captured and given back.

Besides the tensors of its Layout an engine needs counters, groups, loss scaler, scheduler. All of
that is plain data, the same on all ranks but for buffers and random generators.
"""

import hashlib

from libckpt import errors
from libckpt.core import _resuming, _restorer
from libckpt.deepspeed import _optimizer
from libckpt.rng import RNG

COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


class EngineState:
    """The part of an engine that a session saves, and the way back into it. All ranks call it."""

    def __init__(self, engine, layout):
        self._engine, self._layout = engine, layout

    def items(self):
        return items_of(self._engine, self._layout)

    def arrays(self):
        return self._layout.arrays()

    def newest(self, session, source=None):
        """The newest step that all ranks can have, with the items but not the tensors. Raises
        NotFound where there is none, and another error where there is one that does not fit."""
        found = session.restore(source=source)
        problem = None
        try:
            check(self._engine, self._layout, found)
        except errors.CheckpointError as error:
            problem = error
        session.agree("resume", problem)
        return found

    def give(self, session, found, into=None, source=None):
        """Fills the engine, and further items, with what newest() found. Only that has seen where
        the shard came from: by now it is in the node's own memory."""
        engine, layout, items = self._engine, self._layout, found.items
        prologue = getattr(engine.optimizer, "checkpoint_event_prologue", None)
        if prologue is not None:
            prologue()
        before = [(flat.tensor, layout.optimizer.state.get(flat.tensor)) for flat in layout.flats]
        before = [(tensor, own, dict(own or {})) for tensor, own in before]
        is_filling = False
        try:
            _optimizer.make_room(layout, items["optimizer"])
            filled = targets(engine, layout, items) | (into or {})
            source = _resuming.source_again(source, found, session)
            is_filling = True
            session.restore(filled, step=found.step, arrays=layout.arrays(), source=source)
            _optimizer.give_values(layout, items["optimizer"])
        except BaseException as error:
            _optimizer.put_back(layout, before)
            if is_filling and _restorer.may_have_overwritten(error):
                _optimizer.reset(layout)
            raise
        layout.spread()
        give(engine, layout, items)


def items_of(engine, layout):
    """The items of a step, by name. Those with `load_state_dict` are restored where they are."""
    items = {
        "engine": {name: getattr(engine, name) for name in COUNTERS}
        | {"accumulation": engine.gradient_accumulation_steps()},
        "model": _model(engine, layout),
        "layout": _layout(layout),
        "optimizer": _optimizer.item_of(layout),
        "buffers": _buffers(engine, layout),
        "rng": RNG(),
    }
    return items | _with_states(engine)


def _with_states(engine):
    """By name, parts of the engine that have a state of their own."""
    found = {"lr_scheduler": engine.lr_scheduler}
    if engine.random_ltd_enabled():
        found["random_ltd"] = engine.random_ltd_scheduler
    if engine.training_dataloader is not None and engine.curriculum_learning_enabled():
        found["data_sampler"] = engine.training_dataloader.data_sampler
    for owner in (engine, engine.optimizer):
        for field in ("torch_autocast_z0_gradscaler", "torch_autocast_gradscaler"):
            found[field] = found.get(field) or vars(owner).get(field)
    return {name: part for name, part in found.items() if part is not None}


def check(engine, layout, found):
    """Raises InvalidArgument when the step is one that the engine cannot take."""
    if found.items.get("model") != _model(engine, layout):
        raise errors.InvalidArgument(
            f"step {found.step} in memory is of a model with other parameters, by name or shape: "
            "give the run another job"
        )
    if found.world_size == layout.ranks and found.items["layout"] != _layout(layout):
        raise errors.InvalidArgument(
            f"step {found.step} in memory lies in another way on the same number of ranks, as with "
            "another stage of ZeRO: begin with the one that was saved, or another number of ranks"
        )


def targets(engine, layout, items):
    """The targets of a restore, for the items that it found."""
    own = {"rng": RNG(), "buffers": _buffers(engine, layout), **_with_states(engine)}
    return items | {name: part for name, part in own.items() if name in items}


def give(engine, layout, items):
    """The plain values of a step, into the engine; tensors and states have been filled."""
    saved = items["engine"]
    for name in COUNTERS:
        setattr(engine, name, saved[name])
    accumulation = engine.gradient_accumulation_steps()
    if accumulation != saved["accumulation"]:
        engine.micro_steps = saved["micro_steps"] // saved["accumulation"] * accumulation
    _optimizer.give(layout, items["optimizer"])


def _buffers(engine, layout):
    """Those that a state dict has. Which ones there are is found out once."""
    if layout.buffers is None:
        layout.buffers = {
            f"{prefix}.{name}" if prefix else name: (part, name)
            for prefix, part in engine.module.named_modules()
            for name in part._buffers
            if name not in part._non_persistent_buffers_set
        }
    found = {key: part._buffers[name] for key, (part, name) in layout.buffers.items()}
    return {key: buffer for key, buffer in found.items() if buffer is not None}


def _model(engine, layout):
    """A digest of names and shapes of all parameters; made once."""
    if layout.of_model is None:
        shapes = [
            (name, [*map(int, getattr(p, "ds_shape", p.shape))], p.requires_grad)
            for name, p in engine.module.named_parameters()
        ]
        layout.of_model = _digest(sorted(shapes))
    return layout.of_model


def _layout(layout):
    """A digest of what this rank has of them; made once."""
    if layout.of_parts is None:
        layout.of_parts = _digest([flat.parts for flat in layout.flats])
    return layout.of_parts


def _digest(facts):
    return hashlib.sha256(repr(facts).encode()).hexdigest()
