"""Optimizer: the state of an engine's optimizer as an item, and the way back into it."""

import logging

import torch

logger = logging.getLogger("libckpt")

PLAIN = (bool, int, float, str, type(None))


def item_of(layout):
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


def make_room(layout, saved):
    """Gives the optimizer tensors as the saved state had. Their values come later."""
    state = layout.optimizer.state
    for flat, found in _saved_states(layout, saved):
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


def give_values(layout, saved):
    """The plain values of the optimizer's state, as the number of steps, once the tensors have
    theirs."""
    for flat, found in _saved_states(layout, saved):
        own = layout.optimizer.state.get(flat.tensor, {})
        options = saved["groups"][flat.group] if flat.group < len(saved["groups"]) else {}
        for key, value in found["values"].items():
            own[key] = _placed(own.get(key), value, _device(key, options, flat.tensor))


def put_back(layout, before):
    """The optimizer's state is the one of before again: new tensors have whatever lay in their
    memory, and a count of steps without its tensors would mislead the next one."""
    state = layout.optimizer.state
    for tensor, own, content in before:
        if own is None:
            state.pop(tensor, None)
            continue
        own.clear()
        own.update(content)
        state[tensor] = own


def reset(layout):
    """The optimizer begins anew: some of its tensors have the saved values, and others do not."""
    for flat in layout.flats:
        layout.optimizer.state.pop(flat.tensor, None)
    for group in layout.optimizer.param_groups:
        if "step" in group:
            group["step"] = 0
    if hasattr(layout.zero, "_hp_optimizer_states_linked"):
        layout.zero._hp_optimizer_states_linked = False  # The next step makes others.
    logger.error("libckpt: the restore failed in its middle: the optimizer begins anew, without "
                 "moments and with step 0; the weights may be of both steps")  # fmt: skip


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


def give(layout, saved):
    """The options of the groups and the scalers of the loss."""
    for group, options in zip(layout.optimizer.param_groups, saved["groups"]):
        for key, value in options.items():
            group[key] = _placed(group.get(key), value, None)
    _give_scalers(layout.zero, saved["scalers"])
    vars(layout.zero).update(saved["fields"])


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


def _saved_states(layout, saved):
    return [(flat, _saved_state(flat, saved)) for flat in layout.flats if flat.kind != "frozen"]


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
