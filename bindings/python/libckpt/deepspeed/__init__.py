"""libckpt for DeepSpeed: one line more.

    engine, *_ = deepspeed.initialize(...)
    libckpt.deepspeed.attach(engine, job="my-run")
    engine.load_checkpoint("checkpoints")

Every optimizer step is captured in memory that outlives the process. `load_checkpoint` takes that
when it is newer than the folder, on any number of ranks. `save_checkpoint` returns once the state
is copied in memory; its folder, in DeepSpeed's own format, appears complete or not at all.
"""

import atexit
import functools
import logging
import sys
import types
import weakref

from libckpt import errors
from libckpt._init import with_keywords
from libckpt.core import _open_sessions, _resuming, _settings, _turn, _unopened
from libckpt.core.files import _leftovers, _publish_queue
from libckpt.deepspeed._folders import Folders
from libckpt.deepspeed._layout import Layout
from libckpt.deepspeed._memory import Memory
from libckpt.deepspeed._problem import problem_of

__all__ = ["accumulation_for", "attach", "close", "detach", "resume", "wait", "write_universal"]

logger = logging.getLogger("libckpt")

METHODS = ("step", "load_checkpoint", "save_checkpoint")

_attached = weakref.WeakValueDictionary()  # By job.


@with_keywords
def attach(engine, *, job=None, dir=None, client_state=None, metrics=None, **options):
    """Returns the engine, with memory behind it. All ranks call it, after deepspeed.initialize.

    job: the name of the run; by default LIBCKPT_JOB, or made from `dir`.
    dir: where libckpt keeps checkpoints of its own, which any number of ranks restores when memory
        is lost; none: memory only. It is not the folder of save_checkpoint.
    client_state: a dictionary, or a function that returns one: what load_checkpoint returns when it
        takes a step from memory. It consists of plain data and tensors.
    metrics: a function that returns numbers by name, as the loss. It is called for each step that
        is captured; `keep_best` goes by those of rank 0.
    options: those of `libckpt.init`, such as save_mem_interval.
    """
    job = _settings.job(job)
    if job is None and dir is None:
        raise errors.InvalidArgument("attach: give job, the name of the run, LIBCKPT_JOB, or dir")
    if _settings.is_disabled(options):
        return engine
    attached = vars(engine).get("_libckpt")
    if attached is not None and not attached.memory.session.is_closed:
        logger.warning("libckpt: attach: job %s is attached to the engine already: it stays",
                       attached.memory.session.job)  # fmt: skip
        return engine
    _detach(engine)
    vars(engine).pop("_libckpt_failure", None)
    if job is None:
        job = _publish_queue.job_of("deepspeed", "run", str(dir))
    layout = None
    try:
        problem = problem_of(engine)
        layout = None if problem else Layout(engine)
        given = client_state, metrics
        if layout:
            _take_over(job)
        memory = Memory(engine, layout, job, given, {"dir": dir, **options}) if layout else None
    except (errors.CheckpointError, AttributeError) as error:  # A version with other fields.
        if _unopened.is_wrong_option(error):
            raise
        problem, why = str(error), error
        if not isinstance(error, errors.InvalidArgument):  # With that the job may have a step.
            unopened = _unopened.unopened(error, job, dir=dir, **options) if layout else None
            why = unopened.failure() if unopened else None
        if why is not None:
            _raise_without_folder(engine, why)
    if problem:
        logger.warning("libckpt: the DeepSpeed engine is left as it is: %s", problem)
        return engine
    folders = Folders(engine, layout, memory.session.ranks, options)
    engine._libckpt = _attached[job] = Attached(engine, memory, folders)
    atexit.register(_leave, weakref.ref(engine))
    return engine


def _take_over(job):
    """In a notebook the cell that makes an engine runs again; DeepSpeed keeps the earlier one."""
    earlier = _attached.get(job)
    if earlier is None:
        return
    if not earlier.memory.session.is_closed:
        if not hasattr(sys, "ps1"):  # A program may train both, and a job has one line of steps.
            raise _open_sessions.AlreadyOpen(
                f"attach: job {job} is attached to another engine of this process: give each "
                "engine a job of its own, or call libckpt.deepspeed.detach(engine) with that one"
            )
        logger.warning(
            "libckpt: attach: job %s was attached to another engine of this process: this one "
            "takes it over, and the other is DeepSpeed's alone", job,
        )  # fmt: skip
    earlier.let_go()


def _raise_without_folder(engine, why):
    """Where DeepSpeed has nothing to load, training would begin anew over what the job has."""
    stock = engine.load_checkpoint

    @functools.wraps(stock)
    def load_checkpoint(*arguments, **options):
        answer = stock(*arguments, **options)
        if answer[0] is None:
            raise why
        return answer

    engine.load_checkpoint = load_checkpoint
    engine._libckpt_failure = why


def resume(engine, *, source=None):
    """Restores the newest step in memory, on a peer or in `dir`, and no folder of DeepSpeed's.
    Returns its number, or None when there is none. All ranks call it. `source`: from "memory"
    alone, or from "storage", which is `dir`."""
    _turn.check_source(source)
    attached, failure = (vars(engine).get(f"_libckpt{each}") for each in ("", "_failure"))
    if failure is not None:
        raise failure
    return attached.resume(source) if attached else None


def write_universal(engine, dir, tag=None, client_state=None):
    """Writes the engine's state in DeepSpeed's universal layout, without a conversion, to the
    folder `tag` of `dir`; stock DeepSpeed loads it with {"checkpoint": {"load_universal": true}}.
    All ranks call it; it returns when the folder is there. ZeRO 1, 2 and 3 only. `client_state`:
    by default what attach was given. Without libckpt, DeepSpeed saves in its own layout.
    """
    if not engine.zero_optimization():
        raise errors.InvalidArgument("write_universal: an engine with ZeRO 1, 2 or 3 is wanted")
    attached = vars(engine).get("_libckpt")
    if attached is None:  # It is disabled, or could not be attached: training is to go on.
        logger.error("libckpt: write_universal: no job is attached: DeepSpeed saves to %s in its "
                     "own layout, which its ds_to_universal.py converts", dir)  # fmt: skip
        engine.save_checkpoint(dir, tag, client_state or {})
        return
    attached.memory.check_folder("write_universal", dir)
    name = f"global_step{engine.global_steps}_universal" if tag is None else str(tag)
    if client_state is None:
        client_state = attached.memory.client_state()
    attached.folders.write_universal(attached.stock_save, dir, name, client_state)


def wait(engine):
    """Returns when all folders that save_checkpoint promised are there, and the newest step is in
    memory. All ranks call it."""
    attached = vars(engine).get("_libckpt")
    if attached:
        attached.folders.settle()
        attached.memory.capture_newest()


def close(engine):
    """Training is over: publishes what is on its way, and frees the memory of the run's steps, if
    the last one is in a folder or in `dir`. All ranks call it."""
    attached = vars(engine).get("_libckpt")
    if attached:
        attached.folders.settle()
        attached.memory.end(attached.folders)


def detach(engine):
    """Leaves the engine to DeepSpeed, for another one of this process that goes on with its job.
    Publishes what is on its way; memory keeps its steps. All ranks call it."""
    attached = vars(engine).get("_libckpt")
    if attached:
        attached.let_go()


def accumulation_for(global_batch, micro_batch, world_size):
    """gradient_accumulation_steps with which so many ranks make the same global batch."""
    steps, left = divmod(global_batch, micro_batch * world_size)
    if left or steps < 1:
        raise errors.InvalidArgument(
            f"global batch {global_batch}: {world_size} rank(s) with micro batches of "
            f"{micro_batch} cannot make it: give one that {micro_batch * world_size} divides"
        )
    return steps


class Attached:
    """An engine's methods, with memory behind them."""

    def __init__(self, engine, memory, folders):
        self._engine, self.memory, self.folders = engine, memory, folders
        self.stock_save = engine.save_checkpoint
        for name in METHODS:
            stock = getattr(engine, name)
            own = functools.wraps(stock)(functools.partial(getattr(self, f"_{name}"), stock))
            setattr(engine, name, types.MethodType(_without_self(own), engine))

    def let_go(self):
        """The engine's methods are its own again; memory keeps what it holds."""
        _detach(self._engine)
        self.folders.close()
        self.memory.session.abandon()
        _attached.pop(self.memory.session.job, None)

    def _step(self, stock, *arguments, **options):
        answer = stock(*arguments, **options)
        self.memory.capture()
        return answer

    def _save_checkpoint(self, stock, save_dir, tag=None, client_state={}, *arguments, **options):
        self.memory.check_folder("save_checkpoint", save_dir)
        answer = self.folders.save(stock, save_dir, tag, client_state, *arguments, **options)
        self.memory.note_folder(save_dir, client_state)
        return answer

    def _load_checkpoint(self, stock, load_dir, tag=None, load_module_strict=True,
                         load_optimizer_states=True, load_lr_scheduler_states=True,
                         load_module_only=False, custom_load_fn=None):  # fmt: skip
        self.memory.check_folder("load_checkpoint", load_dir)
        self.folders.finish(load_dir)
        is_resume = tag is None and load_optimizer_states and load_lr_scheduler_states
        failure = None
        if is_resume and not load_module_only and custom_load_fn is None:
            taken, failure = self._newer(load_dir)
            if taken is not None:
                return taken
        self.memory.note_folder(load_dir)
        answer = stock(
            load_dir, tag, load_module_strict, load_optimizer_states, load_lr_scheduler_states,
            load_module_only, custom_load_fn,
        )  # fmt: skip
        if failure is not None and answer[0] is None:
            raise failure  # There is something: do not begin anew over it.
        if is_resume and answer[0] is None:
            _leftovers.refuse_to_begin()
        if answer[0] is not None:
            self.memory.start_fresh()
        return answer

    def _newer(self, load_dir):
        """(what load_checkpoint answers with a step from memory, or None; why it could not)."""
        number, name, client_keys = self.folders.newest(load_dir)
        try:
            found = self.memory.newest(load_dir, client_keys)
            if found is None:
                return None, None
            if number is not None and number > found.step:
                if not self.folders.is_for_others(name):
                    logger.warning("libckpt: resumes from %s, which is newer than step %d in "
                                   "memory%s", name, found.step,
                                   _resuming.lost(found, number))  # fmt: skip
                    return None, None
                logger.warning(
                    "libckpt: %s is newer than memory, but another number of ranks saved it, and "
                    "DeepSpeed loads it with as many only", name,
                )  # fmt: skip
            client_state = self.memory.give(found)
            _resuming.log_memory(found, name)
            self.memory.warn_of_client_state(found, name)
        except errors.CheckpointError as error:
            if name is not None:
                logger.error("libckpt: resume from memory: %s; resumes from %s instead",
                             error, name)  # fmt: skip
            return None, error
        self.memory.note_folder(load_dir)
        return (f"libckpt:{self.memory.session.job}/global_step{found.step}", client_state), None

    def resume(self, source=None):
        found = self.memory.newest(source=source)
        if found is None:
            return None
        self.memory.give(found, source)
        _resuming.log_restored(found)
        return found.step


def _leave(engine):
    """The process ends, and DeepSpeed keeps the engine until the last moment: not the session."""
    if engine() is not None:
        _detach(engine())


def _detach(engine):
    """Leaves the engine its own methods."""
    if "_libckpt" in vars(engine):
        for name in ("_libckpt", *METHODS):
            vars(engine).pop(name, None)


def _without_self(function):
    @functools.wraps(function)
    def method(_, *arguments, **options):
        return function(*arguments, **options)

    return method
