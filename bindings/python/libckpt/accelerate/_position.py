"""Position: where training stands in its data, so that it goes on with the very next batch.

An epoch's order is drawn when its iteration begins: from a generator, or from torch's own one. So
the state that they had then is kept. When `skip_first_batches` makes the loader that goes on in the
middle of an epoch, its iteration begins from that state, and its first batch leaves the random
generators as they were captured.
"""

import torch
from accelerate.data_loader import DataLoaderShard

from libckpt.rng import RNG


class Position:
    """An item: a state, and what to do with one that was restored."""

    def __init__(self, accelerator):
        self._accelerator = accelerator
        self._restored = None
        self._begun = {}  # By number of the loader, the states at the beginning of its epoch.
        self._rng = None  # As captured, until training has gone on from there.
        self._watch()

    def state_dict(self):
        self._watch()
        self._rng = None
        accelerator = self._accelerator
        loaders = enumerate(accelerator._dataloaders)
        return {
            "step": accelerator.step,
            "saves": accelerator.project_configuration.iteration,
            "loaders": [self._state_of(number, loader) for number, loader in loaders],
        }

    def load_state_dict(self, state):
        """Keeps the state until take(): a folder that is newer replaces it."""
        self._restored = state

    @property
    def saves(self):
        """How many folders had a number when the step that was restored was captured."""
        return self._restored["saves"]

    def take(self):
        """Sets the accelerator to the restored state, from which training goes on."""
        accelerator, state = self._accelerator, self._restored
        accelerator.step = state["step"]
        accelerator.project_configuration.iteration = state["saves"]
        for number, saved in enumerate(state["loaders"][: len(accelerator._dataloaders)]):
            self._begun[number] = saved["begun"]
            self._give(accelerator._dataloaders[number], saved)
        self._rng, self._restored = RNG().state_dict(), None

    def forget(self):
        self._restored = self._rng = None

    def resumed(self, skipping, loader, count):
        """The loader that skips batches of this one, in the middle of an epoch."""
        numbers = [n for n, own in enumerate(self._accelerator._dataloaders) if own is loader]
        if numbers and count > 0:
            begun = self._begun.get(numbers[0]) if self._rng is not None else None
            _watch(skipping, self, numbers[0], loader, begun, self._rng)
            self._rng = None
        return skipping

    def _watch(self):
        for number, loader in enumerate(self._accelerator._dataloaders):
            _watch(loader, self, number)

    def begins(self, number, loader, begun):
        """An iteration begins; from the state `begun`, if there is one."""
        generator = _generator_of(loader)
        if begun is not None:
            torch.set_rng_state(_tensor(begun["torch"]))
            if generator is not None and begun["generator"] is not None:
                generator.set_state(_tensor(begun["generator"]))
        self._begun[number] = {
            "torch": _bytes(torch.get_rng_state()),
            "generator": None if generator is None else _bytes(generator.get_state()),
        }

    def _state_of(self, number, loader):
        sampler = _seedable(loader)
        is_stateful = getattr(loader, "use_stateful_dataloader", False)
        return {
            "iteration": getattr(loader, "iteration", None),
            "sampler": None if sampler is None else [sampler.epoch, sampler.initial_seed],
            "begun": self._begun.get(number),
            "stateful": loader.state_dict() if is_stateful else None,
        }

    def _give(self, loader, saved):
        if saved["iteration"] is not None and hasattr(loader, "iteration"):
            loader.iteration = saved["iteration"]
        sampler = _seedable(loader)
        if sampler is not None and saved["sampler"] is not None:
            sampler.epoch, sampler.initial_seed = saved["sampler"]
        if saved["stateful"] is not None and getattr(loader, "use_stateful_dataloader", False):
            loader.load_state_dict(saved["stateful"])


def _watch(loader, position, number, owner=None, begun=None, rng=None):
    """Notifies the position when an iteration of this loader begins. `rng`: what its first batch
    leaves.

    accelerate's loaders ask their own `base_dataloader` for an iterator, one batch ahead.
    """
    base = getattr(loader, "base_dataloader", None)
    if type(loader) is not DataLoaderShard or "__iter__" in vars(base):
        return
    first = 1 + getattr(loader, "skip_batches", 0)  # The batch that is trained on first.
    stock = base.__iter__

    def iterate():
        nonlocal begun, rng
        position.begins(number, owner or loader, begun)
        kept, begun, rng = rng, None, None  # Once.
        yield from stock() if kept is None else _leaving(stock(), first, kept)

    base.__iter__ = iterate


def _leaving(batches, first, rng):
    """The batches; once the one after the first is fetched, the generators have this state."""
    count = 0
    for batch in batches:
        count += 1
        if count == first + 1:
            RNG().load_state_dict(rng)
        yield batch
    if count <= first:
        RNG().load_state_dict(rng)


def _seedable(loader):
    sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
    return sampler if hasattr(sampler, "initial_seed") and hasattr(sampler, "epoch") else None


def _generator_of(loader):
    """The generator that draws an epoch's order; None: torch's own one draws it."""
    generator = getattr(loader, "synchronized_generator", None)
    sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
    return generator if generator is not None else getattr(sampler, "generator", None)


def _bytes(state):
    return state.numpy().tobytes()


def _tensor(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
