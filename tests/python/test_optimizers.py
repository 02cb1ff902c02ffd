"""Goal: an optimizer's state comes back to its own parameters, where it is, and bit for bit.

Method: optimizers whose parameters come in another order, of another type, in wrappers or in no
item at all are saved and restored; what does not fit must be refused before anything is changed.
"""

import json

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402


def make(seed, order=1, kind=torch.optim.AdamW, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3)).to(dtype)
    parameters = list(model.parameters())[::order]
    return {"model": model, "optimizer": kind(parameters, lr=0.1, **options)}


def train(items):
    model, optimizer = items["model"], items["optimizer"]
    dtype = next(model.parameters()).dtype
    model(torch.ones(2, 3, dtype=dtype)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_by_name(items):
    names = {parameter: name for name, parameter in items["model"].named_parameters()}
    state = items["optimizer"].state
    return {names[parameter]: dict(state[parameter]) for parameter in state}


def are_same(one, other):
    if torch.is_tensor(one):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one)
    return one == other


def copied(state):
    return {
        name: {key: part.clone() if torch.is_tensor(part) else part for key, part in parts.items()}
        for name, parts in state.items()
    }


def names_of(items, **options):
    from libckpt.core import _items

    structure, tensors, _ = _items.flatten(items, **options)
    json.loads(structure)
    return set(tensors)


def test_state_has_the_name_of_its_parameter():
    items = make(1)
    train(items)
    found = names_of(items)
    parts = [f"{layer}.{part}" for layer in (0, 1) for part in ("weight", "bias")]
    keys = ("step", "exp_avg", "exp_avg_sq")
    wanted = {f"optimizer.state.model.{part}.{key}" for part in parts for key in keys}
    assert {name for name in found if name.startswith("optimizer.")} == wanted
    assert names_of({"optimizer": items["optimizer"], "model": items["model"]}) == found
    alone = names_of({"optimizer": items["optimizer"]})
    assert "optimizer.state.0.exp_avg" in alone


def wrapped(how):
    if how == "compiled":
        return torch.compile
    if how == "compiled inside":
        return lambda model: torch.nn.Sequential(torch.compile(model[0]), model[1])
    if how == "checkpointed":
        from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

        return checkpoint_wrapper.checkpoint_wrapper
    return torch.nn.DataParallel


def unnamed(optimizer, _):
    """As `by_names` says of a state with another form than torch's, and as all were once saved."""
    return optimizer.state_dict(), None


HOWS = ["compiled", "compiled inside", "checkpointed", "parallel"]


@pytest.mark.parametrize("how", HOWS)
def test_wrappers_leave_no_trace_in_names(how):
    items = make(1)
    train(items)
    plain = names_of(items)
    items["model"] = wrapped(how)(items["model"])
    assert names_of(items) == plain


@pytest.mark.parametrize("of_old", [False, True], ids=["today", "before names were plain"])
@pytest.mark.parametrize("how", HOWS)
def test_a_wrapped_optimizers_state_comes_back_wrapped_or_not(job, monkeypatch, how, of_old):
    from libckpt.adapters.torch import _modules, _optimizers

    first, second = make(1), make(2)
    train(first)
    session = job()
    with monkeypatch.context() as patched:
        if of_old:
            patched.setattr(_modules, "WRAPPERS", {})
            patched.setattr(_modules, "_kinds", {})
            patched.setattr(_optimizers, "by_names", unnamed)
        saved = {**first, "model": wrapped(how)(first["model"])}
        session.save(1, saved).captured.result(30)
    session.restore(second)
    assert are_same(second["model"].state_dict(), first["model"].state_dict())
    assert are_same(state_by_name(second), state_by_name(first))
    third = make(3)
    session.restore({**third, "model": wrapped(how)(third["model"])})
    assert are_same(third["model"].state_dict(), first["model"].state_dict())


@pytest.mark.parametrize("is_new", [False, True], ids=["with state", "without state"])
def test_parameters_in_another_order_get_their_own_state(job, is_new):
    first, second = make(1), make(2, order=-1)
    train(first)
    if not is_new:
        train(second)
    expected = copied(state_by_name(first))
    session = job()
    session.save(1, first).captured.result(30)
    before = {key: part for parts in state_by_name(second).values() for key, part in parts.items()}
    session.restore(second)
    assert are_same(state_by_name(second), expected)
    after = {key: part for parts in state_by_name(second).values() for key, part in parts.items()}
    assert is_new or all(after[key] is before[key] for key in before)
    train(first)
    train(second)
    assert are_same(second["model"].state_dict(), first["model"].state_dict())


@pytest.mark.parametrize("is_new", [False, True], ids=["with state", "without state"])
def test_state_keeps_its_type_and_every_bit(job, is_new):
    def of_type(seed):
        items = make(seed, dtype=torch.bfloat16)
        train(items)
        for parts in items["optimizer"].state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                parts[key] = torch.rand(parts[key].shape)  # More bits than a bfloat16 has.
        return items

    first = of_type(1)
    second = make(2, dtype=torch.bfloat16) if is_new else of_type(2)
    before = {name: parts["exp_avg"] for name, parts in state_by_name(second).items()}
    session = job()
    session.save(1, first).captured.result(30)
    session.restore(second)
    assert are_same(state_by_name(second), state_by_name(first))
    found = state_by_name(second)
    assert found["0.weight"]["exp_avg"].dtype == torch.float32
    assert all(found[name]["exp_avg"] is tensor for name, tensor in before.items())


def test_options_come_back_and_a_tensor_among_them_stays_itself(job):
    def items(rate):
        model = torch.nn.Linear(2, 2)
        groups = [{"params": [model.weight], "lr": torch.tensor(rate)}, {"params": [model.bias]}]
        return {"model": model, "optimizer": torch.optim.AdamW(groups, betas=(rate, 0.5))}

    first, second = items(0.25), items(0.5)
    rate = second["optimizer"].param_groups[0]["lr"]
    session = job()
    session.save(1, first).captured.result(30)
    session.restore(second)
    groups = second["optimizer"].param_groups
    assert groups[0]["lr"] is rate
    assert rate.item() == 0.25
    assert groups[1]["betas"] == (0.25, 0.5)
    assert second["optimizer"].param_groups[0]["params"][0] is second["model"].weight


def other_groups():
    model = make(2)["model"]
    groups = [{"params": [part]} for part in model.parameters()]
    return {"model": model, "optimizer": torch.optim.AdamW(groups)}


def other_parameters():
    items = make(2)
    parameters = [items["model"][0].weight, *(torch.nn.Parameter(torch.ones(2)) for _ in "abc")]
    return {**items, "optimizer": torch.optim.AdamW(parameters)}


@pytest.mark.parametrize("others", [other_groups, other_parameters])
def test_what_does_not_fit_is_refused_before_anything_is_overwritten(job, others):
    first, second = make(1), others()
    train(first)
    session = job()
    session.save(1, first).captured.result(30)
    before = copied({"": second["model"].state_dict()})[""]
    message = '"optimizer", a AdamW, does not take its state'
    with pytest.raises(libckpt.InvalidArgument, match=message) as told:
        session.restore(second)
    assert "do not train on" not in str(told.value)
    assert are_same(second["model"].state_dict(), before)


def test_a_class_that_loads_its_state_itself_is_asked_in_its_own_order(job):
    class Own(torch.optim.AdamW):
        def load_state_dict(self, state):
            self.loaded = True
            super().load_state_dict(state)

    first, second = make(1, kind=Own), make(2, order=-1, kind=Own)
    train(first)
    session = job()
    session.save(1, first).captured.result(30)
    session.restore(second)
    assert second["optimizer"].loaded
    assert are_same(state_by_name(second), state_by_name(first))


def test_state_that_was_saved_by_positions_is_read(job, monkeypatch):
    from libckpt.adapters.torch import _optimizers

    first, second = make(1), make(2)
    train(first)
    session = job()
    with monkeypatch.context() as patched:
        patched.setattr(_optimizers, "by_names", unnamed)
        session.save(1, first).captured.result(30)
    session.restore(second)
    assert are_same(state_by_name(second), state_by_name(first))


def test_state_of_another_class_of_optimizers_is_warned_of(job, caplog):
    first = make(1)
    train(first)
    session = job()
    session.save(1, first).captured.result(30)
    other = make(2, kind=torch.optim.AdamW, amsgrad=True)
    torch.optim.lr_scheduler.StepLR(other["optimizer"], 3)  # Has an option of its own there.
    session.restore(other)
    assert "another class" not in caplog.text
    session.restore(make(2, kind=torch.optim.SGD, momentum=0.9))
    assert 'item "optimizer" is a SGD, and seems to have been' in caplog.text
    assert "saved with amsgrad, betas" in caplog.text


def test_an_optimizer_of_a_changed_model_names_what_differs_and_the_cures(job):
    first, more = make(1), make(2)
    train(first)
    session = job()
    session.save(1, first).captured.result(30)
    more["model"].append(torch.nn.Linear(3, 3))
    more["optimizer"] = torch.optim.AdamW(more["model"].parameters())
    with pytest.raises(libckpt.InvalidArgument) as told:
        session.restore(more)
    text = str(told.value)
    assert "4 parameter(s) there and 6 here (model.2.weight, model.2.bias only here); " in text
    cures = ["renamed", "restore without this item", "initialize_from", "start_fresh()"]
    assert sorted(cures, key=text.index) == cures
    with pytest.raises(libckpt.InvalidArgument) as told:
        session.restore({"net": first["model"], "optimizer": first["optimizer"]}, strict=False)
    assert "(model.0.weight, " in str(told.value) and "; net.0.weight, " in str(told.value)
    session.restore({"model": more["model"]}, strict=False)  # A cure.
    session.restore(dict(net=first["model"], optimizer=first["optimizer"]),
                    renamed={"model": "net"})  # fmt: skip


@pytest.mark.parametrize("is_last", [True, False])
def test_an_item_of_another_name_is_told_before_its_optimizer_is_blamed(job, is_last):
    first = make(1)
    train(first)
    session = job()
    session.save(1, first).captured.result(30)
    named = [("net", first["model"]), ("optimizer", first["optimizer"])]
    with pytest.raises(libckpt.InvalidArgument) as told:
        session.restore(dict(reversed(named) if is_last else named))
    assert 'item "net" was not saved' in str(told.value)
    assert 'has "model", not asked for' in str(told.value)
    assert str(told.value).endswith('renamed={"model": "net"}')


@pytest.mark.parametrize("has_state", [True, False])
def test_state_that_a_constructor_makes_stays_where_another_class_saved_none(job, has_state):
    first = make(1)
    if has_state:
        train(first)
    session = job()
    session.save(1, first).captured.result(30)
    other = make(2, kind=torch.optim.Adagrad, initial_accumulator_value=0.5)
    session.restore(other)
    assert all(state["sum"].eq(0.5).all() for state in state_by_name(other).values())
    train(other)
    assert all(state["sum"].gt(0.5).any() for state in state_by_name(other).values())


def test_the_classes_of_torch_whose_constructor_makes_state_are_known():
    from libckpt.adapters.torch import _optimizers

    kinds = [
        kind for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
    ]  # fmt: skip
    with_state = {
        kind for kind in kinds if kind([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1).state
    }
    assert len(kinds) > 8
    assert with_state == set(_optimizers.MAKE_STATE)


def test_options_that_another_version_of_torch_lacks_are_no_other_class():
    from libckpt.adapters.torch import _optimizers

    optimizer = make(1)["optimizer"]
    state = optimizer.state_dict()
    newest = next(reversed([name for name in state["param_groups"][0] if name != "params"]))
    for group in state["param_groups"]:
        del group[newest]
        group["initial_lr"] = 0.1
    assert _optimizers.why_another_kind(optimizer, state) == ""
    state["param_groups"][0]["rho"] = 0.9
    assert f"saved with rho and has {newest} here" in _optimizers.why_another_kind(
        optimizer, state
    )


def test_what_is_restored_without_items_is_what_torch_would_load(job):
    first, second = make(1), make(2)
    train(first)
    session = job()
    session.save(1, first).captured.result(30)
    second["optimizer"].load_state_dict(session.restore().items["optimizer"])
    assert are_same(state_by_name(second), state_by_name(first))


def test_generators_of_more_gpus_than_there_are_here_are_left_out(job, monkeypatch, caplog):
    session, rng = job(), libckpt.RNG()
    saved = {**rng.state_dict(), "cuda": [torch.zeros(16, dtype=torch.uint8) for _ in range(9)]}
    with monkeypatch.context() as patched:
        patched.setattr(libckpt.RNG, "state_dict", lambda self: saved)
        session.save(1, {"model": torch.ones(2), "rng": rng}).captured.result(30)
    drawn = torch.rand(1)
    model = torch.zeros(2)
    session.restore({"model": model, "rng": rng})
    assert model.eq(1).all()
    assert torch.equal(torch.rand(1), drawn)
    assert "generators of 9 GPU(s) were saved" in caplog.text


def test_the_states_of_gpus_that_are_here_are_set_and_no_others(monkeypatch):
    states = [torch.full((16,), gpu, dtype=torch.uint8) for gpu in range(3)]
    found = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: states[0])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, gpu: found.update({gpu: state}))
    rng = libckpt.RNG()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    rng.load_state_dict({**rng.state_dict(), "cuda": states})
    assert found == {0: states[0], 1: states[1]}


@pytest.mark.parametrize("part", ["python", "numpy", "torch"])
def test_generators_that_do_not_fit_are_found_before_the_model_is_overwritten(
    job, monkeypatch, part
):
    session, rng = job(), libckpt.RNG()
    odd = {"python": [3, [1, 2], None], "numpy": ["PCG64", 1], "torch": torch.ones(7).byte()}
    saved = {**rng.state_dict(), part: odd[part]}
    with monkeypatch.context() as patched:
        patched.setattr(libckpt.RNG, "state_dict", lambda self: saved)
        session.save(1, {"model": torch.ones(2), "rng": rng}).captured.result(30)
    model = torch.zeros(2)
    with pytest.raises(libckpt.InvalidArgument, match='"rng", a RNG, does not take its state'):
        session.restore({"model": model, "rng": rng})
    assert model.eq(0).all()
