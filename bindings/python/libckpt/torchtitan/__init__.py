"""torchtitan: a CheckpointManager for the seat of torchtitan's own.

    checkpoint=libckpt.torchtitan.CheckpointManager.Config(enable=True, interval=500)

Each step is captured in memory, beside the next one. Folders are torchtitan's, by its own code. A
start takes memory, if that is not older than the newest folder.
"""

import logging
import os
import re
from dataclasses import dataclass

from torchtitan.components.checkpointer.base import MODEL, OPTIMIZER
from torchtitan.components.checkpointer.dcp import CheckpointManager as _Stock
from torchtitan.tools import filesystem

from libckpt import errors
from libckpt._init import init
from libckpt.core import _resuming, _settings, _unopened
from libckpt.core.files import _publish_queue
from libckpt.rng import RNG

__all__ = ["CheckpointManager"]

logger = logging.getLogger("libckpt")

LAST_STEP_WAIT = 60  # Seconds for a Slot: no later step replaces the last one.
JOB = re.compile(r"[A-Za-z0-9._-]{0,128}")
WANTED = ("_save", "_load", "_close", "_find_load_step", "_create_checkpoint_id")
_missing = [name for name in WANTED if not hasattr(_Stock, name)]
if _missing:
    raise ImportError(
        f"libckpt.torchtitan: torchtitan's CheckpointManager has no {', '.join(_missing)}: 0.3 is "
        "known; without libckpt.torchtitan it saves its folders itself"
    )


class CheckpointManager(_Stock):
    """Other options of libckpt come from the environment (LIBCKPT_...) or the file that it names.

    job: the name of the run in memory; without one LIBCKPT_JOB, or made of the folder's path.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_Stock.Config):
        job: str = ""
        """Name of the run in memory; if empty LIBCKPT_JOB, or made of the checkpoint folder."""

        save_mem_interval: int | None = None
        """Capture in memory every so many steps; None: LIBCKPT_SAVE_MEM_INTERVAL, or each one."""

        replicas: int | None = None
        """Copies of each rank's state, on as many nodes; None: LIBCKPT_REPLICAS, or 2."""

        source: str = ""
        """Start from "memory" alone, or from "storage" (folders); if empty from the newest."""

        def __post_init__(self):
            _Stock.Config.__post_init__(self)
            if self.source not in ("", "memory", "storage"):
                raise ValueError(f'source {self.source!r}: it is "memory" or "storage".')
            if self.source == "memory" and self.load_step != -1:
                raise ValueError("source memory: give no load_step, which loads a folder.")
            if not JOB.fullmatch(self.job):
                raise ValueError(f"job {self.job!r}: 128 of letters, digits, '.', '_', '-' at most")
            if any(number is not None and number < 1
                   for number in (self.save_mem_interval, self.replicas)):  # fmt: skip
                raise ValueError("save_mem_interval and replicas must be at least 1.")

    def __init__(self, config, **given):
        self._session, self._unopened, self._is_over = None, None, False
        self._source = config.source or None
        super().__init__(config, **given)
        if self.enable and not _settings.is_true(_settings.configured("disable")):
            self._open(config)

    def _open(self, config):
        path = _place(self.folder)
        job = _settings.job(config.job) or _publish_queue.job_of(
            "torchtitan", os.path.basename(path), path
        )
        options = {"save_mem_interval": config.save_mem_interval, "replicas": config.replicas}
        try:
            self._session = init(job, **options).guard(*self.states[OPTIMIZER])
        except errors.CheckpointError as error:  # All ranks have it: they open together or not.
            if _unopened.is_wrong_option(error):
                raise
            logger.error("libckpt: %s; steps are not captured in memory", error)
            self._unopened = _unopened.unopened(error, job, **options)

    def _items(self):
        """torchtitan's own objects, which a restore fills where they are."""
        names = self.states.keys() - {MODEL, OPTIMIZER}
        items = {name: self.states[name] for name in sorted(names) if self.states[name] is not None}
        model, optimizers = self.states[MODEL].model, list(self.states[OPTIMIZER])
        items |= {f"{MODEL}_{number}": part for number, part in enumerate(model)}
        items |= {f"{OPTIMIZER}_{number}": part for number, part in enumerate(optimizers)}
        return {**items, "rng": RNG()}

    # --- what torchtitan's trainer calls

    def _save(self, curr_step, last_step=False):
        if self._session is not None and not self.load_only:
            if last_step:
                self._session.save(curr_step, self._items, wait=LAST_STEP_WAIT)
            else:
                self._session.save_checkpoint_if_needed(curr_step, self._items)
        saved = super()._save(curr_step, last_step)
        self._is_over = last_step
        return saved

    def _load(self, step=-1):
        has_none = self._session is None and self._unopened is None
        if has_none or step != -1:
            return self._load_stock(step)
        number = self._find_load_step()
        beside = None if number == -1 else self._create_checkpoint_id(number)
        restored, failure, folder = _resuming.from_source(
            self._source, self._session, self._restore, beside, self._unopened
        )
        is_initial = folder is None and (self.initial_load_path or self.initial_load_in_hf)
        if restored is None and is_initial and failure is None:
            return self._load_stock(step)
        if not _resuming.is_memory_newest(restored, failure, folder, number, name=beside):
            return self._load_stock(step)
        return True

    def _load_stock(self, step):
        if self._session is not None:
            try:
                self._session.start_fresh()
            except errors.CheckpointError as error:
                logger.error("libckpt: %s; steps are not captured in memory", error)
        return super()._load(step)

    def _restore(self, source):
        """Fills the objects with the step in memory."""
        new = [optimizer for optimizer in self.states[OPTIMIZER] if not optimizer.state]
        self.states[OPTIMIZER].state_dict()  # Makes state of the types that torchtitan wants.
        items = {name: item for name, item in self._items().items() if self._is_wanted(name)}
        try:
            return self._session.restore(items, source=source)
        except BaseException:
            for optimizer in new:
                optimizer.state.clear()
            raise

    def _is_wanted(self, name):
        """By torchtitan's `exclude_from_loading`, which has names without numbers."""
        return name.rpartition("_")[0] not in self.exclude_from_loading and (
            name not in self.exclude_from_loading
        )

    def _close(self):
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close() if self._is_over else session.abandon()  # A restart wants it.
            except errors.CheckpointError as error:
                logger.error("libckpt: %s", error)
        super()._close()


def _place(folder):
    """The same on all ranks, wherever they run."""
    return folder if filesystem.is_remote(folder) else os.path.realpath(folder)
