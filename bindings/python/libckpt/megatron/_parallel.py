"""Parallel: this rank's place in Megatron's groups, in the words of any version of it."""


def _ask(name, default):
    from megatron.core import parallel_state

    ask = getattr(parallel_state, name, None)
    try:
        return default if ask is None else ask()
    except (AssertionError, RuntimeError):  # There is no such group.
        return default


def sizes():
    tensor = _ask("get_tensor_model_parallel_world_size", 1)
    return {
        "tensor": tensor,
        "expert_tensor": _ask("get_expert_tensor_parallel_world_size", tensor),
        "pipeline": _ask("get_pipeline_model_parallel_world_size", 1),
        "expert": _ask("get_expert_model_parallel_world_size", 1),
    }


def place():
    """Ranks with equal places have the same part of the model."""
    return {
        **sizes(),
        "tensor_rank": _ask("get_tensor_model_parallel_rank", 0),
        "pipeline_rank": _ask("get_pipeline_model_parallel_rank", 0),
        "expert_rank": _ask("get_expert_model_parallel_rank", 0),
    }


def data_rank():
    from megatron.core import parallel_state

    try:
        return parallel_state.get_data_parallel_rank(with_context_parallel=True)
    except TypeError:  # Versions without context parallelism.
        return parallel_state.get_data_parallel_rank()


def expert_data_rank():
    return _ask("get_expert_data_parallel_rank", data_rank())


def copies(is_expert):
    """(rank, number) of this one among the ranks that hold the same parameters."""
    if is_expert:
        return expert_data_rank(), _ask("get_expert_data_parallel_world_size", 1)
    from megatron.core import parallel_state

    try:
        return data_rank(), parallel_state.get_data_parallel_world_size(with_context_parallel=True)
    except TypeError:  # Versions without context parallelism.
        return data_rank(), parallel_state.get_data_parallel_world_size()
