"""Optimizers: the state of each of Megatron's optimizers by parameter, on this rank.

The distributed optimizer has a stretch of the parameter's memory; the others have all of it. State
is read where it lies, and filled where it lies: no `load_state_dict()` is called.
"""

import dataclasses

import torch

from libckpt.errors import InvalidArgument, Unsupported

OF_EXPERTS = "is_expert_parallel"
IDENTITY = ("wd_mult", "lr_mult", OF_EXPERTS, "is_decoupled_lr")
ALIKE = ("wd_mult", "lr_mult", "is_decoupled_lr")  # Those of experts have the others' settings.


@dataclasses.dataclass
class Owned:
    """An optimizer's state for one parameter of the model."""

    parameter: torch.Tensor
    main: torch.Tensor  # The inner optimizer updates it: a stretch of it, or a copy in fp32.
    inner: torch.optim.Optimizer
    begin: int  # The first element of the parameter that it is for.
    is_divided: bool  # Among the data parallel ranks; else all of them have the same.

    @property
    def state(self):
        return self.inner.state.get(self.main, {})

    @property
    def has_own_main(self):
        """Whether the main parameter is memory of its own, and not the model's."""
        return self.main.dtype != self.parameter.dtype or (
            self.main.untyped_storage().data_ptr() != self.parameter.untyped_storage().data_ptr()
        )

    def tensors(self):
        """By the name of the state."""
        found = {"param": self.main} if self.has_own_main else {}
        for key, value in self.state.items():
            is_tensor = isinstance(value, torch.Tensor) and key != "step"
            if is_tensor and value.numel() == self.main.numel():
                found[key] = value
        return found


def parts_of(optimizer):
    """Megatron's optimizers in it, one by one."""
    parts = getattr(optimizer, "chained_optimizers", None)
    parts = [optimizer] if parts is None else parts
    return [part for part in parts if not getattr(part, "is_stub_optimizer", False)]


def inner_of(part):
    """Torch's optimizer in one of Megatron's."""
    return part if isinstance(part, torch.optim.Optimizer) else part.optimizer


def owned_by(part):
    """Each parameter with what the optimizer has for it."""
    _check(part)
    inner = inner_of(part)
    if hasattr(part, "model_param_group_index_map"):  # The distributed optimizer.
        for parameter, (group, at) in part.model_param_group_index_map.items():
            main = inner.param_groups[group]["params"][at]
            found = part._get_model_param_range_map(parameter)["param"]
            yield Owned(parameter, main, inner, found.start, True)
        return
    models = {}
    groups = [getattr(part, name, ()) for name in ("float16_groups", "fp32_from_float16_groups")]
    for model_group, main_group in zip(*groups, strict=True):
        models |= {id(main): model for model, main in zip(model_group, main_group, strict=True)}
    for group in inner.param_groups:
        for main in group["params"]:
            yield Owned(models.get(id(main), main), main, inner, 0, False)


def _check(part):
    config = getattr(part, "config", None)
    kind = type(inner_of(part)).__name__
    if getattr(config, "use_precision_aware_optimizer", False):
        problem = "use_precision_aware_optimizer: its state is scaled in a way of its own"
    elif kind == "HybridDeviceOptimizer":
        problem = "optimizer_cpu_offload: a part of its state is another optimizer's"
    elif getattr(getattr(part, "ddp_config", None), "use_megatron_fsdp", False):
        problem = "use_megatron_fsdp: its parameters are divided in a way of its own"
    else:
        return
    raise Unsupported(f"libckpt does not know the optimizer's state with {problem}")


def state_of(parts):
    """The names of the state that parameters have, or will have, and whether each counts steps."""
    for part in parts:
        for owned in owned_by(part):
            if owned.state:
                return sorted(owned.tensors().keys() - {"param"}), "step" in owned.state
    kinds = {type(inner_of(part)) for part in parts}
    if any("Adam" in kind.__name__ for kind in kinds):
        return ["exp_avg", "exp_avg_sq"], bool(kinds & {torch.optim.Adam, torch.optim.AdamW})
    if any(group.get("momentum") for part in parts for group in inner_of(part).param_groups):
        return ["momentum_buffer"], False
    return [], False


def make_state(parts, keys, has_step):
    """State of zeros where an optimizer has none yet; those that no restore fills are as new.
    Returns the parameters that got it."""
    made = []
    for part in parts:
        inner = inner_of(part)
        for owned in owned_by(part):
            if owned.state:
                continue
            state = inner.state[owned.main]
            made.append((inner, owned.main))
            for key in keys:
                state[key] = torch.zeros_like(owned.main.data)
            if has_step:
                state["step"] = _new_step(inner, owned.main)
    return made


def drop_state(made):
    for inner, main in made:
        inner.state.pop(main, None)


def _new_step(inner, main):
    """As torch's optimizers make it."""
    is_there = inner.defaults.get("capturable") or inner.defaults.get("fused")
    return torch.zeros((), dtype=torch.float32, device=main.device if is_there else "cpu")


def settings_of(part):
    """Plain data beside the tensors of parameters, the same on all ranks."""
    inner = inner_of(part)
    counters = [state["step"] for state in inner.state.values() if "step" in state]
    if counters and getattr(counters[0], "is_cuda", False):
        counters = counters[:1]  # A GPU would be waited for, once for each parameter.
    steps = set(map(float, counters))
    if len(steps) > 1:
        raise Unsupported(f"the optimizer counts other steps for other parameters: {sorted(steps)}")
    groups = [{k: v for k, v in group.items() if k != "params"} for group in inner.param_groups]
    scaler = getattr(part, "grad_scaler", None)
    return {
        "groups": groups,
        "step": steps.pop() if steps else None,
        "scaler": scaler.state_dict() if scaler is not None else None,
    }


def give_settings(parts, saved):
    """Those of as many optimizers, or of others: one rank that has all experts has one optimizer
    for them and the rest, and expert parallel ranks have two."""
    if len(parts) != len(saved):
        groups = [group for settings in saved for group in settings["groups"]]
        steps = {settings["step"] for settings in saved} - {None}
        if len(steps) > 1:
            raise InvalidArgument(
                f"restore: {len(saved)} optimizers were saved, which made other numbers of steps "
                f"({sorted(steps)}), and {len(parts)} are here"
            )
        merged = {**saved[0], "groups": groups, "step": max(steps, default=None)}
        saved = [merged] * len(parts)
    for part, settings in zip(parts, saved, strict=True):
        _give_settings(part, settings)


def _give_settings(part, settings):
    inner = inner_of(part)
    there = {_identity(group): group for group in settings["groups"]}
    alike = {_identity(group, among=ALIKE): group for group in settings["groups"]}
    is_by_identity = len(there) == len(settings["groups"])
    if not is_by_identity and len(settings["groups"]) != len(inner.param_groups):
        raise InvalidArgument(
            f"restore: the optimizer has {len(inner.param_groups)} groups here, and "
            f"{len(settings['groups'])} there"
        )
    for at, group in enumerate(inner.param_groups):
        if is_by_identity:
            found = there.get(_identity(group)) or alike.get(_identity(group, among=ALIKE))
        else:
            found = settings["groups"][at]
        if found is None:
            raise InvalidArgument(
                f"restore: the optimizer's group {_identity(group)} was not there when the step "
                "was saved"
            )
        group.update({key: value for key, value in found.items() if key != OF_EXPERTS})
    for state in inner.state.values():
        if "step" in state and settings["step"] is not None:
            # Each has its own: one that all share would be counted once for each parameter.
            state["step"] = torch.full_like(state["step"], settings["step"])
    scaler = getattr(part, "grad_scaler", None)
    if scaler is not None and settings["scaler"] is not None:
        scaler.load_state_dict(settings["scaler"])


def _identity(group, among=IDENTITY):
    """The key by which Megatron knows a group; NeMo has "pre_" before two of the names."""
    return tuple(str(group.get(key, group.get(f"pre_{key}"))) for key in among)
