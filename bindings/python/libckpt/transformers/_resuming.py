"""Resuming: where a Trainer goes on, and how it gets there when it is sharded."""

import logging

from libckpt.core import _resuming
from libckpt.rng import RNG

logger = logging.getLogger("libckpt")


def from_source(memory, folders, number, source):
    """(the newest step of the session, the number of the folder that is left to take), each None
    without one. All ranks call it."""
    folder = None if number is None else folders.path(number)
    restored, folder = memory.newest(source, folder)
    return restored, None if folder is None else number


def is_from_memory(memory, restored, folders, number, beside):
    """Whether training goes on from the step in memory, and not from the folder of that number.
    `beside`: the folder that is there, which may be none to take."""
    folder = None if number is None else folders.path(number)
    step, name = number, beside
    is_of_model = folder is not None and not _has_optimizer(memory, folders, number)
    if is_of_model:  # Any step in memory is better: the optimizer would begin anew.
        step, name = -1, f"{number}, which has the model alone"
    is_so = _resuming.is_memory_newest(restored, memory.failure, folder, step, name=name)
    if is_of_model and not is_so:
        logger.warning("libckpt: %s has the model alone, as save_only_model says: the optimizer "
                       "and the learning rate begin anew", folder)  # fmt: skip
    if folder is not None and restored is None:
        memory.start_fresh()  # It may have steps, which do not lead to this one.
    return is_so


def _has_optimizer(memory, folders, number):
    """As rank 0 sees it: it may have written it alone, to a disk of its own."""
    has_it, session = folders.has_optimizer(number), memory.session
    if session is None:
        return has_it
    return session.ranks.decide("optimizer of the newest folder", has_it, lambda said: said[0])


def newest_for_all(folders, ranks):
    """The number of the newest folder that every rank can use: a node may have a disk of its own,
    as with save_on_each_node, and may have died before its newest one was there. All ranks call
    it. `ranks` None: they have no session to talk by, and each takes its own newest one."""
    number = folders.newest_whole()
    while ranks is not None:
        oldest, are_alike = ranks.decide("newest folder of all", number, _oldest)
        if are_alike:
            break
        number = None if oldest is None else folders.newest_whole(oldest)
    return number


def _oldest(numbers):
    """(None where a rank has none, whether all are the same)."""
    oldest = None if None in numbers else min(numbers)
    return [oldest, all(number == oldest for number in numbers)]


class ShardedResume:
    """Where a sharded Trainer resumes from.

    A restore fills tensors where they are, but the Trainer shards its model only after it has been
    given a folder. So it gets a stand-in. The real choice follows as soon as the model exists, and
    before the Trainer reads from the folder how far it had come in its data.
    """

    def __init__(self, trainer, memory, folders):
        self._trainer, self._memory, self._folders = trainer, memory, folders
        self._prepared = None  # The model, once it is sharded and the Trainer has not asked for it.
        self._is_from_memory = False
        self._number = None  # The folder to resume from.
        self.source = None  # The place that it is to be from.
        self.folder = str(folders.folders().private / "resume" / "newest")

    def write_state(self, text=None):
        """Writes the file that the Trainer reads from a folder first."""
        from transformers.trainer_callback import TrainerState

        path = self._folders.folders().private / "resume" / "newest" / "trainer_state.json"
        with self._trainer.args.main_process_first(desc="where to resume from"):
            if self._trainer.is_local_process_zero():
                path.parent.mkdir(parents=True, exist_ok=True)
                if text is None:
                    TrainerState().save_to_json(str(path))
                else:
                    path.write_text(text)

    # --- in the place of the Trainer's methods

    def init_state(self, stock, max_steps, num_update_steps_per_epoch, num_train_epochs,
                   resume_from_checkpoint, trial):  # fmt: skip
        def init(folder):
            return stock(max_steps, num_update_steps_per_epoch, num_train_epochs, folder, trial)

        if resume_from_checkpoint != self.folder:
            return init(resume_from_checkpoint)
        init(None)
        self._prepared, _ = self._trainer._prepare_for_training(max_steps, None, None)
        return init(self._decide())

    def prepare(self, stock, max_steps, train_dataloader, resume_from_checkpoint):
        if self._prepared is None:
            prepared = stock(max_steps, train_dataloader, resume_from_checkpoint)
            self._memory.prepared()
            return prepared
        model, self._prepared = self._prepared, None
        self._trainer.callback_handler.train_dataloader = train_dataloader
        return model, train_dataloader

    def _decide(self):
        """Fills the model. Returns the folder with the Trainer's state; none: it begins anew."""
        folders, memory = self._folders.folders(), self._memory
        number, ranks = memory.decide("newest folder", self._newest_folder(folders))
        beside = number
        restored, number = from_source(memory, folders, number, self.source)
        if None not in (restored, number) and ranks not in (None, self._trainer.args.world_size):
            logger.warning("libckpt: %s is not resumed from: DeepSpeed wants the %d rank(s) that "
                           "saved it", folders.path(number), ranks)  # fmt: skip
            number = beside = None
        self._is_from_memory = is_from_memory(memory, restored, folders, number, beside)
        self._number = None if self._is_from_memory else number
        if self._is_from_memory:
            self.write_state(memory.state)
            return self.folder
        if number is None:
            return None
        self._load(str(folders.path(number)))
        return str(folders.path(number))

    def _newest_folder(self, folders):
        """[its number, the number of ranks that alone can load it], where there are such."""
        number = folders.newest_whole()
        if number is None or not self._trainer.is_deepspeed_enabled:
            return [number, None]
        from libckpt.deepspeed._folders import ranks_of

        is_universal = self._trainer.model_wrapped.load_universal_checkpoint()
        return [number, None if is_universal else ranks_of(folders.path(number))]

    def _load(self, folder):
        """As the Trainer itself does once its model is sharded."""
        from transformers.trainer import _is_peft_model, deepspeed_load_checkpoint

        trainer = self._trainer
        if trainer.is_deepspeed_enabled:
            is_strict = not _is_peft_model(trainer.model)
            deepspeed_load_checkpoint(trainer.model_wrapped, folder, load_module_strict=is_strict)
        else:
            trainer._load_from_checkpoint(folder, trainer.model_wrapped)
        trainer._load_optimizer_and_scheduler(folder)
        trainer._load_scaler(folder)

    # --- what the Trainer asks the folder for when it has found its place in the data

    def give_rng(self, trainer):
        if self._is_from_memory:
            RNG().load_state_dict(self._memory.rng)
        elif self._number is not None:
            folder = self._folders.folders().path(self._number)
            type(trainer)._load_rng_state(trainer, str(folder))

    def give_totals(self, trainer):
        if self._is_from_memory:
            self._memory.give_totals(trainer)
