"""A small transformer on a GPU, to be killed at any step and started again.

torch_trainer.py KIND DIRECTORY STEPS [stock]: KIND names what is special about the training, see
KINDS; "stock" trains without libckpt. Says "began STEP", "loss STEP HEX" after each step and, at
the end, "weights DIGEST" and "step MEDIAN ms, save MEDIAN ms". Without a GPU it trains on
processors.
"""

import contextlib
import hashlib
import os
import statistics
import sys
import time

# Products with the same bits each time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.nn import functional

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
WIDTH, LAYERS, HEADS, LENGTH, BATCH = (1024, 6, 16, 128, 8) if HAS_GPU else (64, 2, 2, 16, 2)
VOCABULARY = 4096


class Model(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout, batch_first=True,
                                             norm_first=True) for _ in range(LAYERS)
        )  # fmt: skip
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens.flatten())


class Texts(torch.utils.data.Dataset):
    """One batch for each step, from `start` on."""

    def __init__(self, start, steps):
        self.start, self.steps = start, steps

    def __len__(self):
        return self.steps - self.start

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(1000 + self.start + index)
        return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)


class Training:
    """The usual step. KINDS change a part of it each."""

    dropout = 0.1
    optimizer_options = {}
    autocast = torch.bfloat16

    def __init__(self):
        torch.manual_seed(1)
        self.model = self.make_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4,
                                           **self.optimizer_options)  # fmt: skip
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=20)

    def make_model(self):
        return Model(self.dropout).to(DEVICE)

    def items(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def batches(self, start, steps):
        texts = Texts(start, steps)
        for index in range(len(texts)):
            yield texts[index].to(DEVICE, non_blocking=True)

    def loss(self, batch):
        with torch.autocast(DEVICE, self.autocast, enabled=self.autocast is not None):
            return self.model(batch)

    def step(self, batch):
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss.detach()

    def whole(self):
        """Each parameter and all of its optimizer's state."""
        for parameter in self.model.parameters():
            state = self.optimizer.state.get(parameter, {})
            for part in (parameter, *(state[key] for key in sorted(state))):
                yield part.full_tensor() if hasattr(part, "full_tensor") else part

    def around(self):
        return contextlib.nullcontext()


class Fused(Training):
    optimizer_options = {"fused": True}


class Scaled(Training):
    """Half precision, with a scaler that skips updates."""

    autocast = torch.float16

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**24, growth_interval=5)

    def items(self):
        return super().items() | {"scaler": self.scaler}

    def step(self, batch):
        loss = self.loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss.detach()


class Workers(Training):
    """Forked workers load, and outlive a trainer that is killed; a thread pins what they load."""

    def batches(self, start, steps):
        loader = torch.utils.data.DataLoader(
            Texts(start, steps), batch_size=None, num_workers=2, pin_memory=HAS_GPU,
            multiprocessing_context="fork", persistent_workers=True,
            generator=torch.Generator(),
        )  # fmt: skip
        for batch in loader:
            yield batch.to(DEVICE, non_blocking=True)


class OtherStream(Training):
    """The loop's own stream is not the default one."""

    def around(self):
        if not HAS_GPU:
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.Stream())


class Sharded(Training):
    """FSDP2 of one rank."""

    def make_model(self):
        from torch.distributed.fsdp import fully_shard

        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", LOCAL_RANK="0")
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("nccl" if HAS_GPU else "gloo", rank=0, world_size=1,
                                             store=store)  # fmt: skip
        model = super().make_model()
        mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model


class Compiled(Training):
    dropout = 0.0

    def __init__(self):
        super().__init__()
        self.compiled = torch.compile(self.model)

    def loss(self, batch):
        with torch.autocast(DEVICE, self.autocast):
            return self.compiled(batch)


KINDS = {"plain": Training, "expandable": Training, "fused": Fused, "scaled": Scaled,
         "workers": Workers, "stream": OtherStream, "sharded": Sharded,
         "compiled": Compiled}  # fmt: skip


def open_session(training, kind, directory):
    import libckpt

    session = libckpt.init(f"gpu-{kind}", directory, save_storage_interval=10, keep=2,
                           log_file_path=f"{directory}/log", raise_on_error=True)  # fmt: skip
    session.guard(training.optimizer)
    return session, training.items() | {"rng": libckpt.RNG()}


def train(kind, directory, steps, is_stock):
    training = KINDS[kind]()
    start, saves, took = 0, [], []
    if not is_stock:
        session, items = open_session(training, kind, directory)
        start = session.restore_or(items, default=0)
    print("began", start, flush=True)
    with training.around():
        for step, batch in enumerate(training.batches(start, steps), start + 1):
            began_at = time.perf_counter()
            loss = training.step(batch)
            if not is_stock:
                saved_at = time.perf_counter()
                session.save_checkpoint_if_needed(step, items)
                saves.append(time.perf_counter() - saved_at)
            print("loss", step, loss.item().hex(), flush=True)
            took.append(time.perf_counter() - began_at)
    if HAS_GPU:
        torch.cuda.synchronize()
    total = hashlib.sha256()
    for part in training.whole():
        total.update(part.detach().cpu().numpy().tobytes())
    print("weights", total.hexdigest(), flush=True)
    median_ms = [1e3 * statistics.median(times) if times else 0 for times in (took, saves)]
    print("step {:.2f} ms, save {:.2f} ms".format(*median_ms), flush=True)
    if not is_stock:
        session.close()


def main(kind, directory, steps, mode=""):
    if kind == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    torch.use_deterministic_algorithms(True)
    if HAS_GPU:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    train(kind, directory, int(steps), mode == "stock")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
