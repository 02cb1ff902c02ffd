"""Memory: the session that a job of Megatron is captured in, and a step of it brought back."""

import contextlib
import io
import json
import logging
import operator

import torch

from libckpt import errors
from libckpt._init import init
from libckpt.core import _resuming, _settings, _signals, _unopened
from libckpt.megatron import _optimizers, _parallel, _training
from libckpt.megatron._pieces import Pieces
from libckpt.rng import RNG

logger = logging.getLogger("libckpt")


class Memory:
    """`error` says why steps are not captured; every failure is logged once, and none
    is raised but that of a wrong option."""

    def __init__(self, job, options):
        self.session, self.error, self.unopened = None, None, None
        self._steps = _settings.steps_between(options)
        self._pieces, self._made_of = None, ()
        self._has_saved = False
        try:
            self.session = init(job, **options)
        except errors.CheckpointError as error:
            if _unopened.is_wrong_option(error):
                raise
            self._give_up(error)
            self.unopened = _unopened.unopened(error, job, **options)

    def _give_up(self, error):
        self.error = error
        logger.error("libckpt: %s; Megatron's steps are not captured in memory", error)

    @property
    def is_open(self):
        return self.session is not None and self.error is None

    def pieces(self, model, optimizer):
        made_of = [optimizer, *model]
        known = self._made_of
        if len(known) != len(made_of) or any(map(operator.is_not, known, made_of)):
            self._pieces = Pieces(model, optimizer, self.session.rank)
            self._made_of = made_of
            for part in self._pieces.parts:
                self.session.guard(_optimizers.inner_of(part))
        return self._pieces

    # --- saving

    def save(self, iteration, objects, extra, metrics=None):
        """Captures the step if it is due: `objects` are model, optimizer and scheduler."""
        if not self._is_due(iteration):
            return
        # On all ranks alike, also on one that captures nothing any more: the others would wait.
        with parameters_gathered(objects[0]):
            if self.session is not None:
                self._capture(iteration, objects, extra, metrics)

    def _capture(self, iteration, objects, extra, metrics):
        if self.error is not None:  # On all ranks: a step that one of them lacks never commits.
            self.session.save_checkpoint_if_needed(iteration, self._refuse)
            return
        model, optimizer, scheduler = objects
        progress = {"iteration": iteration, **extra}
        ticket = self.session.save_checkpoint_if_needed(
            iteration, lambda: self._items(self.pieces(model, optimizer), scheduler, progress),
            arrays=lambda: self.pieces(model, optimizer).arrays(), metrics=metrics,
        )  # fmt: skip
        if _resuming.was_refused(self.session, ticket) and not self._has_saved:
            logger.error("libckpt: no step is captured in memory: call load_checkpoint before "
                         "training; to begin anew, give another job")  # fmt: skip
        self._has_saved = True

    def _refuse(self):
        raise errors.Unavailable(f"{self.error}; Megatron's steps are not captured")

    def _is_due(self, iteration):
        """Not asked for steps between: they would gather and collect all for nothing. By time, one
        rank may find a step due that another one does not: all of them gather at each."""
        if self._steps is None:
            return True
        is_due = self._steps > 0 and iteration % self._steps == 0
        if not is_due and self.session is not None:
            self.session._between.report(iteration)
        return is_due

    def _items(self, pieces, scheduler, progress):
        return {
            "state": {
                "geometry": pieces.geometry(),
                "place": _parallel.place(),
                "optimizers": [_optimizers.settings_of(part) for part in pieces.parts],
                "scheduler": scheduler.state_dict() if scheduler is not None else None,
                "objects": _objects_of(pieces.modules),
                "tracker": _training.rng_tracker_states(),
                "progress": progress,
            },
            "rng": RNG(),
        }

    # --- restoring

    def restore(self, model, optimizer, scheduler, oldest=None, source=None):
        """Fills model, optimizer and scheduler from the newest step. Returns what progress it had,
        and the Restored of the plain data, which comes first: it brings the shard to this node, so
        that it alone has seen from where. None: there is no step. A step before `oldest` fills
        nothing, since Megatron adds its own to what a scheduler has. All ranks call it."""
        pieces = self._pieces_on_all_ranks(model, optimizer)
        made = []
        if pieces is None:
            return None
        try:
            found = self.session.restore(source=source)
            if oldest is not None and found.step < oldest:
                return found.items["state"]["progress"], found
            source = _resuming.source_again(source, found, self.session)
            state = self._fill(pieces, made, found, source)
        except errors.NotFound:
            _optimizers.drop_state(made)
            return None
        except Exception:
            _optimizers.drop_state(made)
            raise
        _optimizers.give_settings(pieces.parts, state["optimizers"])
        _give_objects(pieces.modules, state["objects"])
        if scheduler is not None and state["scheduler"] is not None:
            scheduler.load_state_dict(state["scheduler"])
        if state["place"] == _parallel.place():
            _training.give_rng_tracker_states(state["tracker"])
        elif state["tracker"]:
            logger.warning(
                "libckpt: step %d was saved by a rank with another place in Megatron's groups: the "
                "generators of its random tracker stay as they are",
                found.step,
            )
        return state["progress"], found

    def _pieces_on_all_ranks(self, model, optimizer):
        """None: a rank has something that libckpt does not know. Memory has no such step, so that
        there is nothing to lose."""
        pieces, failure = None, None
        try:
            pieces = self.pieces(model, optimizer)
            pieces.arrays()
        except Exception as error:
            failure = error
        try:
            self.session.agree("pieces", failure)
            return pieces
        except Exception as error:
            _signals.raise_of_handler(error)
            self._give_up(error)
            return None

    def _fill(self, pieces, made, found, source):
        """With the arrays that this number of ranks would have saved; and if nobody saved such
        ones, with those that were."""
        keys, has_step = _optimizers.state_of(pieces.parts)
        made += _optimizers.make_state(pieces.parts, keys, has_step)
        here = json.loads(pieces.geometry())
        there = json.loads(found.items["state"]["geometry"])
        into, failure = {"state": {}, "rng": RNG()}, None
        try:
            self.session.restore(into, found.step, arrays=pieces.arrays(), source=source)
        except errors.NotFound:
            raise
        except errors.CheckpointError as error:
            failure = error
        is_done = failure is None and _state_in(there) == _state_in(here)
        if self.session.ranks.decide("geometry", is_done, all):
            return into["state"]
        if there != here and found.world_size == self.session.world_size:
            raise errors.Unsupported(
                f"restore step {found.step}: as many ranks saved it, which divide the model "
                f"among their ranks otherwise ({_said(there)}, and here {_said(here)}): start with "
                "those sizes, or with another number of ranks"
            ) from failure
        if there == here:
            raise failure or errors.Unavailable("restore: another rank could not be restored")
        _optimizers.drop_state(made)
        made[:] = _optimizers.make_state(pieces.parts, there["keys"], there["has_step"])
        changed = {here[name]: there[name] for name in ("expert_tensor", "tensor")}
        arrays, relaid = pieces.relaid(changed)
        into = {"state": {}, "rng": RNG()}
        self.session.restore(into, found.step, arrays=arrays, source=source)
        with torch.no_grad():
            for each in relaid:
                each.fill()
        return into["state"]


def _said(geometry):
    return ", ".join(f"{name} {geometry[name]}" for name in _parallel.sizes())


def _state_in(geometry):
    return geometry["keys"], geometry["has_step"]


@contextlib.contextmanager
def parameters_gathered(model):
    """With overlap_param_gather Megatron gathers the parameters in the next forward pass only; as
    its own saves do, this one makes it gather them now."""
    waiting = [
        chunk for chunk in model
        if getattr(getattr(chunk, "ddp_config", None), "overlap_param_gather", False)
        and getattr(chunk, "remove_forward_pre_hook_handles", None)
    ]  # fmt: skip
    for chunk in waiting:
        chunk.disable_forward_pre_hook()
    try:
        yield
    finally:
        for chunk in waiting:
            chunk.enable_forward_pre_hook()


def _objects_of(modules):
    """The objects that modules save besides tensors; most of them are empty."""
    found = {}
    for key, module in modules.items():
        value = module.get_extra_state()
        if hasattr(value, "getvalue"):  # Transformer Engine's, a file in memory.
            value = {"file": value.getvalue()}
        if value is not None and value != {"file": b""}:
            found[key] = value
    return found


def _give_objects(modules, objects):
    for key, value in objects.items():
        if key in modules:
            is_file = isinstance(value, dict) and value.keys() == {"file"}
            modules[key].set_extra_state(io.BytesIO(value["file"]) if is_file else value)
