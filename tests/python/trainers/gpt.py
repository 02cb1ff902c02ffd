"""Ranks of megatron-core's GPT, to be killed and started again with other parallel sizes.

gpt.py NODES JOB STEPS OPTIONS: NODES is JSON, the environment of each rank; OPTIONS is JSON:
tensor, pipeline and expert (parallel sizes; with expert its layers have experts), numbers (in the
place of gradients), distributed (optimizer), bf16, overlap (of gathers with the forward), stock or
hook (for Megatron's own functions); directory, storage, kept, memory and options as for
initialize_easyckpt, load for load_checkpoint; dump, a folder for what the ranks have after each
step, and as they begin.
"""

import contextlib
import functools
import json
import os
import pathlib
import signal
import zlib

import cuda_to_cpu
import doors
import megatron_training
import ports
import ranks
import torch
import torch.distributed as dist
from doors import say
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

BATCH, LENGTH, VOCABULARY, LAYERS, EXPERTS = 4, 8, 32, 2, 4


class Gpt:
    """The model, its optimizer and scheduler, and how they make a step."""

    def __init__(self, options):
        self.options = options
        self.pipeline = options.get("pipeline", 1)
        parallel_state.initialize_model_parallel(
            options.get("tensor", 1), self.pipeline,
            expert_model_parallel_size=options.get("expert", 1),
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = self._make_model()
        self.optimizer, self.scheduler = self._make_optimizer()

    def _make_model(self):
        is_bf16 = self.options.get("bf16", False)
        dtype = torch.bfloat16 if is_bf16 else torch.float32
        config = TransformerConfig(
            num_layers=LAYERS, hidden_size=16, ffn_hidden_size=24, num_attention_heads=2,
            use_cpu_initialization=True, params_dtype=dtype, pipeline_dtype=dtype, bf16=is_bf16,
            hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
            bias_dropout_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
            bias_activation_fusion=False, gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            tensor_model_parallel_size=self.options.get("tensor", 1),
            pipeline_model_parallel_size=self.pipeline, **self._experts(),
        )  # fmt: skip
        spec = get_gpt_layer_local_spec(config.num_moe_experts, normalization="LayerNorm")
        model = GPTModel(
            config, spec, vocab_size=VOCABULARY,
            max_sequence_length=LENGTH, pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
        )  # fmt: skip
        if is_bf16:
            model = Float16Module(config, model)
        overlap = self.options.get("overlap", False)
        distributed = DistributedDataParallelConfig(
            use_distributed_optimizer=self.options.get("distributed", True),
            overlap_grad_reduce=overlap, overlap_param_gather=overlap,
        )  # fmt: skip
        return DistributedDataParallel(config, distributed, model)

    def _experts(self):
        """For the configuration."""
        size = self.options.get("expert")
        if size is None:
            return {}
        return {"num_moe_experts": EXPERTS, "expert_model_parallel_size": size,
                "moe_router_topk": 2, "moe_router_load_balancing_type": "none",
                "moe_token_dispatcher_type": "allgather", "add_bias_linear": False}  # fmt: skip

    def _make_optimizer(self):
        is_bf16 = self.options.get("bf16", False)
        config = OptimizerConfig(
            optimizer="adam", lr=1e-2, min_lr=1e-3, weight_decay=0.1, clip_grad=1.0, bf16=is_bf16,
            params_dtype=torch.bfloat16 if is_bf16 else torch.float32,
            use_distributed_optimizer=self.options.get("distributed", True),
            overlap_param_gather=self.options.get("overlap", False),
        )  # fmt: skip
        optimizer = get_megatron_optimizer(config, [self.model])
        scheduler = OptimizerParamScheduler(
            optimizer, init_lr=0.0, max_lr=1e-2, min_lr=1e-3, lr_warmup_steps=3, lr_decay_steps=50,
            lr_decay_style="cosine", start_wd=0.1, end_wd=0.1, wd_incr_steps=50,
            wd_incr_style="constant",
        )  # fmt: skip
        return optimizer, scheduler

    def names(self):
        """The parameters by the names that they have in the whole model."""
        first = LAYERS // self.pipeline * parallel_state.get_pipeline_model_parallel_rank()
        for name, parameter in self.model.module.named_parameters():
            parts = name.removeprefix("module.").split(".")
            if parts[:2] == ["decoder", "layers"]:
                parts[2] = str(int(parts[2]) + first)
            yield ".".join(parts), parameter

    def step_with_numbers(self, iteration):
        """With gradients that the name and the iteration say, for stages of a pipeline."""
        for name, parameter in self.names():
            generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {iteration}".encode()))
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))
        self.optimizer.step()
        self.scheduler.step(1)
        return 0.0

    def step(self, iteration):
        """The loss, of the whole batch."""
        if self.options.get("numbers"):
            return self.step_with_numbers(iteration)
        generator = torch.Generator().manual_seed(50 + iteration)
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
        size = parallel_state.get_data_parallel_world_size()
        rank = parallel_state.get_data_parallel_rank()
        own = tokens[rank * BATCH // size : (rank + 1) * BATCH // size]
        positions = torch.arange(LENGTH).expand_as(own)
        mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        loss = self.model(own, positions, mask, labels=(own * 5 + 1) % VOCABULARY).float().mean()
        loss.backward()
        self.model.finish_grad_sync()
        self.optimizer.step()
        self.scheduler.step(1)
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def dump(self, path):
        """All that this tensor parallel rank has, by Megatron's own means."""
        found = {}
        for name, parameter in self.names():
            is_divided = getattr(parameter, "tensor_model_parallel", False)
            dimension = parameter.partition_dim if is_divided else None
            found[name] = {"dimension": dimension, "model": parameter.detach().clone()}
        names = {id(parameter): name for name, parameter in self.names()}
        (optimizer,) = self.optimizer.chained_optimizers
        if isinstance(optimizer, DistributedOptimizer):
            state = optimizer.get_parameter_state_dp_zero(return_on_all_ranks=True)
            for number, buffer in enumerate(optimizer.buffers):
                (tensors,) = state[number].values()
                for parameter, (begin, end, _) in buffer.param_index_map.items():
                    for key in ("param", "exp_avg", "exp_avg_sq"):
                        part = tensors[key][begin:end].reshape(parameter.shape)
                        found[names[id(parameter)]][key] = part
        else:
            inner = optimizer.optimizer
            for parameter, state in inner.state.items():
                for key in ("exp_avg", "exp_avg_sq"):
                    found[names[id(parameter)]][key] = state[key].clone()
        if parallel_state.get_data_parallel_rank() == 0:
            rank = parallel_state.get_tensor_model_parallel_rank()
            torch.save(found, f"{path}.{rank + parallel_state.get_pipeline_model_parallel_rank()}")
        dist.barrier()


def train(job, steps, options):
    cuda_to_cpu.enter()
    options = json.loads(options)
    dist.init_process_group("gloo")
    gpt = Gpt(options)
    if options.get("stock"):
        doors.uninstall()
        return train_stock(gpt, int(steps), pathlib.Path(options["directory"]))
    if options.get("hook"):
        return train_hooked(gpt, int(steps), pathlib.Path(options["directory"]))
    import libckpt
    from libckpt import megatron

    dump = options.get("dump") and pathlib.Path(options["dump"])
    easy = megatron.initialize_easyckpt(
        options.get("memory", 1), options.get("storage", 0), options.get("kept", 0), job=job,
        save_dir=options.get("directory"), replicas=2, ckpt_format=options.get("format", "torch"),
        **options.get("options", {}),
    )  # fmt: skip
    more = [gpt.model], gpt.optimizer, gpt.scheduler
    begin = megatron.load_checkpoint(*more, concat=options.get("concat", False),
                                     **options.get("load", {}))  # fmt: skip
    say("began at", begin)
    if dump and begin:
        gpt.dump(dump / f"began-{begin}")
    for iteration in range(begin + 1, int(steps) + 1):
        loss = gpt.step(iteration)
        say("loss", iteration, repr(loss))
        megatron.save_checkpoint_if_needed(iteration, *more, metrics={"loss": loss})
        if dump:
            gpt.dump(dump / f"made-{iteration}")
        if not easy.is_disabled:
            with contextlib.suppress(libckpt.NotFound, libckpt.Unavailable):  # Another skipped it.
                easy.memory.session.wait(iteration, "committed", 60)
        dist.barrier()
        say("made", iteration)
        if iteration == int(os.environ.get("HOLD_AT", 0)):
            signal.pause()
    say("rates", [group["lr"] for group in gpt.optimizer.param_groups])
    if options.get("directory") or options.get("options"):
        easy.close()
    say("ended")
    ports.leave()


def load_stock(gpt, directory):
    """From the newest folder, as Megatron's own load_checkpoint does it, without libckpt."""
    iteration = int((directory / "latest_checkpointed_iteration.txt").read_text())
    if gpt.options.get("format") == "torch_dist":
        return load_stock_torch_dist(gpt, directory / f"iter_{iteration:07d}")
    number = parallel_state.get_tensor_model_parallel_rank()
    folder = directory / f"iter_{iteration:07d}" / f"mp_rank_{number:02d}"
    state = torch.load(folder / "model_optim_rng.pt", map_location="cpu", weights_only=False)
    assert state["iteration"] == iteration
    gpt.model.module.load_state_dict(state["model"], strict=True)
    (optimizer,) = gpt.optimizer.chained_optimizers
    is_distributed = isinstance(optimizer, DistributedOptimizer)
    if is_distributed:
        cuda_to_cpu.prepare_to_load(optimizer)
    gpt.optimizer.load_state_dict(state["optimizer"])
    if is_distributed:
        gpt.optimizer.load_parameter_state(str(folder / "distrib_optim.pt"))
        cuda_to_cpu.finish_load(optimizer)
    gpt.scheduler.load_state_dict(state["opt_param_scheduler"])
    return iteration


def load_stock_torch_dist(gpt, folder):
    """The same, of a folder in the distributed format."""
    from megatron.core import dist_checkpointing

    (optimizer,) = gpt.optimizer.chained_optimizers
    is_distributed = isinstance(optimizer, DistributedOptimizer)
    if is_distributed:
        cuda_to_cpu.prepare_to_load(optimizer)
    model = gpt.model.module.sharded_state_dict()
    metadata = dist_checkpointing.load_content_metadata(str(folder))
    assert metadata["distrib_optim_sharding_type"] == "fully_reshardable"
    state = gpt.optimizer.sharded_state_dict(model, is_loading=True, metadata=metadata)
    state = dist_checkpointing.load({"model": model, "optimizer": state}, str(folder))
    gpt.model.module.load_state_dict(state["model"], strict=True)
    gpt.optimizer.load_state_dict(state["optimizer"])
    if is_distributed:
        cuda_to_cpu.finish_load(optimizer)
    gpt.scheduler.load_state_dict(state["opt_param_scheduler"])
    return state["iteration"]


def train_stock(gpt, steps, directory):
    iteration = load_stock(gpt, directory)
    say("began at", iteration)
    for step in range(iteration + 1, steps + 1):
        say("loss", step, repr(gpt.step(step)))
    say("ended")
    ports.leave()


def train_hooked(gpt, steps, directory):
    """The loop of megatron.training, whose functions the hook replaces."""
    training, args = megatron_training.install(directory, functools.partial(load_stock, gpt))
    import libckpt.megatron.hook  # noqa: F401  The line.

    more = [gpt.model], gpt.optimizer, gpt.scheduler
    iteration, operations = training.load_checkpoint(*more)
    say("began at", iteration)
    say("consumed", args.consumed_train_samples, operations)
    while iteration < steps:
        iteration += 1
        say("loss", iteration, repr(gpt.step(iteration)))
        args.consumed_train_samples += BATCH
        training.checkpoint_and_decide_exit(*more, iteration, 1000 * iteration, {}, None)
        dist.barrier()
        say("made", iteration)
    if int(os.environ.get("HOLD_AT", 0)):
        signal.pause()
    say("ended")
    ports.leave()


main = functools.partial(ranks.main, train=train)
