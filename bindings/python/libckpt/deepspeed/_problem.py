"""Problem: why libckpt leaves an engine as it is."""

import deepspeed

VERSION_MIN = (0, 17)


def problem_of(engine):
    """Why the engine's state is not one that libckpt knows; none: it is."""
    version = tuple(int(part) for part in deepspeed.__version__.split(".")[:2])
    if version < VERSION_MIN:
        return f"DeepSpeed {deepspeed.__version__} is older than {VERSION_MIN[0]}.{VERSION_MIN[1]}"
    if not isinstance(engine, deepspeed.DeepSpeedEngine):
        return f"it is a {type(engine).__name__}"
    stage_3 = engine.zero_optimization_partition_weights()
    zero = engine.optimizer
    parallel = engine.mp_world_size > 1 or isinstance(engine, deepspeed.PipelineEngine)
    kinds = {
        "it has no optimizer": zero is None or not zero.param_groups,
        "it is tensor or pipeline parallel": parallel,
        "it has layers of experts": engine.has_moe_layers,
        "its optimizer state is on NVMe": engine.zero_nvme_offload_optimizer(),
        "its parameters are offloaded": stage_3 and getattr(zero, "offload_param", False),
        "a part of its optimizer state is offloaded": stage_3 and engine.zero_partial_offload() < 1,
        "its parameters are divided among a part of the ranks": "MiCS" in type(zero).__name__,
        "ZenFlow or SuperOffload steps its optimizer": bool(
            engine.zenflow or engine.super_offload()
        ),
        "FP16_Optimizer fuses its weights": hasattr(zero, "fp32_groups_flat"),
    }
    return next((problem for problem, is_so in kinds.items() if is_so), None)
