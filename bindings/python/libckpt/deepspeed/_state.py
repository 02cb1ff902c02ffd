"""State: all that a step has of an engine, captured and given back.

Besides the tensors of its Layout an engine needs counters, groups, loss scaler, scheduler. All of
that is plain data, the same on all ranks but for buffers and random generators.
"""

import hashlib

import torch

from libckpt import errors
from libckpt.core import _resuming
from libckpt.rng import RNG

COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
PLAIN = (bool, int, float, str, type(None))


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
        made = []
        try:
            make_room(layout, items["optimizer"], made)
            filled = targets(engine, layout, items) | (into or {})
            source = _resuming.source_again(source, found, session)
            session.restore(filled, step=found.step, arrays=layout.arrays(), source=source)
        except BaseException:
            for tensor in made:
                tensor.zero_()  # Training may go on with it, as with an optimizer that is new.
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
        "optimizer": _optimizer(layout),
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


def make_room(layout, saved, made):
    """Gives the optimizer the state that the saved one had. Its values come later. `made` gets the
    tensors that are new, with whatever lay in their memory, also where another one fails."""
    state = layout.optimizer.state
    for flat in layout.flats:
        if flat.kind == "frozen":
            continue
        found = _saved_state(flat, saved)
        if not found["tensors"] and not found["values"]:
            state.pop(flat.tensor, None)
            continue
        own = state.setdefault(flat.tensor, {})
        for key in own.keys() - found["tensors"].keys() - found["values"].keys():
            del own[key]
        for key, dtype in found["tensors"].items():
            there = own.get(key)
            if there is None or there.shape != flat.tensor.shape or there.dtype != dtype:
                own[key] = _room(flat, dtype)
                made.append(own[key])
        options = saved["groups"][flat.group] if flat.group < len(saved["groups"]) else {}
        for key, value in found["values"].items():
            own[key] = _placed(own.get(key), value, _device(key, options, flat.tensor))


def _room(flat, dtype):
    """Like the flat tensor. The places that a restore fills are left as they are: to touch memory
    for the first time takes longer than the copy, which several threads share. Padding is zero."""
    made = torch.empty_like(flat.tensor.detach(), dtype=dtype)
    row, end = made.view(-1), 0
    for part in sorted(flat.parts, key=lambda part: part.at):
        row[end : part.at].zero_()
        end = part.at + part.count
    row[end:].zero_()
    return made


def give(engine, layout, items):
    """The plain values of a step, into the engine; tensors and states have been filled."""
    saved = items["engine"]
    for name in COUNTERS:
        setattr(engine, name, saved[name])
    accumulation = engine.gradient_accumulation_steps()
    if accumulation != saved["accumulation"]:
        engine.micro_steps = saved["micro_steps"] // saved["accumulation"] * accumulation
    groups = zip(layout.optimizer.param_groups, items["optimizer"]["groups"])
    for group, options in groups:
        for key, value in options.items():
            group[key] = _placed(group.get(key), value, None)
    _give_scalers(engine.optimizer, items["optimizer"]["scalers"])
    vars(engine.optimizer).update(items["optimizer"]["fields"])


def _optimizer(layout):
    first, of_parameters = {}, {}
    for flat in layout.flats:
        if flat.kind == "frozen":
            continue
        state = None
        if flat.is_whole:
            state = of_parameters[flat.name] = _state(layout, flat)
        if flat.group not in first:
            first[flat.group] = _state(layout, flat) if state is None else state
    zero = layout.zero
    fields = ("dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter", "clip_grad")
    return {
        "groups": [_options(group) for group in layout.optimizer.param_groups],
        "states": [first.get(i, _nothing()) for i in range(len(layout.optimizer.param_groups))],
        "of_parameters": of_parameters,
        "scalers": {field: _plain(vars(scaler)) for field, scaler in _scalers(zero).items()},
        "fields": _plain({name: vars(zero)[name] for name in fields if name in vars(zero)}),
    }


def _scalers(zero):
    """By field, those of fp16 losses: of ZeRO 1 to 3, and of FP16_UnfusedOptimizer."""
    fields = ("loss_scaler", "loss_scale_config")
    return {f: vars(zero)[f] for f in fields if vars(zero).get(f) is not None}


def _give_scalers(zero, saved):
    """With another stage of ZeRO it is another class, whose values have the same names."""
    for scaler in _scalers(zero).values():
        for values in saved.values():
            own = vars(scaler)
            own.update({key: value for key, value in values.items() if key in own})


def _state(layout, flat):
    return {
        "tensors": {key: value.dtype for key, value in layout.state_tensors(flat).items()},
        "values": layout.state_values(flat),
    }


def _saved_state(flat, saved):
    of_own = saved["of_parameters"].get(flat.name) if flat.is_whole else None
    if of_own is not None:
        return of_own
    return saved["states"][flat.group] if flat.group < len(saved["states"]) else _nothing()


def _nothing():
    return {"tensors": {}, "values": {}}


def _options(group):
    return {key: value for key, value in group.items() if key != "params" and _is_plain(value)}


def _is_plain(value):
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN) or torch.is_tensor(value)


def _plain(values):
    return {key: value for key, value in values.items() if isinstance(value, PLAIN)}


def _placed(own, value, device):
    """The value, in the tensor that is there already if it fits."""
    if not torch.is_tensor(value):
        return value
    if torch.is_tensor(own) and own.shape == value.shape and own.dtype == value.dtype:
        own.copy_(value)
        return own
    return value.clone() if device is None else value.to(device, copy=True)


def _device(key, options, tensor):
    is_on_gpu = options.get("capturable") or options.get("fused")
    return "cpu" if key == "step" and not is_on_gpu else tensor.device


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
