"""Trainer folders: the checkpoints of a Trainer, written by the daemon behind its back.

The Trainer's own `_save_checkpoint` runs as it is, into a hidden folder. Only the weights, the
optimizer and the scheduler are kept out of it: they are captured in memory and become files on
storage while training goes on. The folder is renamed to `checkpoint-N` when all of it is there.
"""

import logging
import secrets
import shutil

from accelerate.utils import broadcast_object_list

from libckpt import errors
from libckpt.core import _signals
from libckpt.core.files import _leftovers, _publish_queue, _shared_queues
from libckpt.core.files._work import make_or_aside
from libckpt.transformers._folders import ADVICE, SENTINEL, Folders
from libckpt.adapters.torch._members import TorchMember
from libckpt.transformers._weights import Weights, collected, replaced

logger = logging.getLogger("libckpt")


class TrainerFolders:
    def __init__(self, trainer, job, is_disabled=False):
        self._trainer = trainer
        self._job = job
        self._is_disabled = is_disabled  # Transformers writes all of it then, at once.
        self._queue = None
        self._weights = None  # Collected while the Trainer's own save runs.
        self._run, self._saves = None, 0  # Which all ranks know, and count alike.

    def folders(self, trial=None):
        return Folders(type(self._trainer)._get_output_dir(self._trainer, trial=trial))

    def save(self, stock_save, model, trial):
        """In the place of `_save_checkpoint`."""
        trainer, folders = self._trainer, self.folders(trial)
        number = trainer.state.global_step
        name = str(number)
        if name in self._waiting():
            _publish_queue.settle(wait=True)  # The same step again.
        if self._queue is not None:
            self._queue.late.forget([folders.path(number)])
        hidden = folders.work.folder(self._new_name())
        made, problem = make_or_aside(hidden / f"checkpoint-{number}", exist_ok=True)
        hidden, self._weights = made.parent, Weights(made)
        with replaced(trainer, _get_output_dir=lambda trial=None: str(hidden),
                      _push_from_checkpoint=lambda folder: None):  # fmt: skip
            stock_save(model, trial)
        weights, self._weights = self._weights, None
        # Each rank has written a file of its own. They meet as Transformers' ranks do: where they
        # talk through a Store, one that writes for more than a minute is given up by the others.
        trainer.accelerator.wait_for_everyone()
        self._note_best(folders)
        try:
            if problem is not None:
                raise errors.StorageError(problem)
            if not trainer.args.should_save or not self._take(weights, hidden):
                return
            weights.move_to(folders.work.begin(name) / f"checkpoint-{number}")
            shutil.rmtree(hidden, ignore_errors=True)
            trainer.state.save_to_json(str(weights.folder / "trainer_state.json"))
            self._hand_over(folders, number, weights)
        except (errors.StorageError, OSError) as error:  # Training is to go on.
            _signals.raise_of_handler(error)
            logger.error("libckpt: %s does not come: %s; training goes on",
                         folders.path(number), error)  # fmt: skip
            shutil.rmtree(hidden, ignore_errors=True)
        else:
            self._publish_if_wanted(folders, number)

    def _take(self, weights, hidden):
        """Whether this rank publishes what all have written. With save_on_each_node one of each
        node does; where the nodes have one disk after all, the first of them."""
        index = self._trainer.args.process_index
        try:
            weights.move_to(hidden / f"taken-by-{index}")
        except FileNotFoundError:
            logger.warning("libckpt: %s is published by another node, which has the same disk: "
                           "train without save_on_each_node", weights.folder.name)  # fmt: skip
            return False
        return True

    def _new_name(self):
        """A folder's that no save has had, of this run or an earlier one: all ranks write into it
        at once, and none waits until another has emptied it."""
        if self._run is None:
            (self._run,) = broadcast_object_list([secrets.token_hex(8)])
        self._saves += 1
        return f"{self._run}-{self._saves}"

    def keep_weights(self, stock_save, *arguments, **options):
        """In the place of `_save`: all it does, but the writing of the weights."""
        if not self._may_keep():
            return stock_save(*arguments, **options)
        with collected(self._weights):
            return stock_save(*arguments, **options)

    def keep_optimizer(self, stock_save, folder):
        """In the place of `_save_optimizer_and_scheduler`."""
        if not self._may_keep():
            return stock_save(folder)
        trainer = self._trainer
        self._weights.objects = {"optimizer.pt": trainer.optimizer.state_dict(),
                                 "scheduler.pt": trainer.lr_scheduler.state_dict()}  # fmt: skip
        return None

    def _may_keep(self):
        is_plain = self._weights is not None and self._trainer.args.should_save
        return is_plain and not self._is_disabled and self._open_queue(self.folders())

    def finish(self):
        """Publishes what a killed run had captured, and drops the rest. Rank 0 calls it."""
        _leftovers.attempt(self.folders().output, self._finish)

    def _finish(self):
        folders = self.folders()
        if not _shared_queues.settle_earlier(self._job, folders.private / "job"):
            return  # The notes are of this run.
        ends = _leftovers.ends()
        for name, facts in reversed(folders.work.noted()):
            path, files = _leftovers.await_step(
                folders.private / "job", facts["step"], ends, facts.get("weights")
            )
            if path is not None:
                folders.publish(int(name), files)
            else:
                _leftovers.log_dropped(folders.path(int(name)))
        folders.work.drop_all()

    def _waiting(self):
        return [save.publish.number for save in self._queue.waiting] if self._queue else []

    def _open_queue(self, folders):
        if self._queue is None or self._queue.session.is_closed:
            self._queue = None
            try:
                # One rank writes what all have in common.
                self._queue = _shared_queues.opened(
                    self._job, folders.private / "job", rank=0, world_size=1, advice=ADVICE
                )
            except errors.CheckpointError as error:
                logger.error("libckpt: %s; Transformers writes its checkpoints itself", error)
        return self._queue is not None

    def _note_best(self, folders):
        """Transformers notes the best one when its folder exists; here that may be later."""
        state, args = self._trainer.state, self._trainer.args
        if state.best_global_step and str(args.save_strategy) != "SaveStrategy.NO":
            best = folders.path(state.best_global_step)
            is_coming = str(state.best_global_step) in self._waiting()
            if state.best_global_step == state.global_step or best.exists() or is_coming:
                state.best_model_checkpoint = str(best)

    def _hand_over(self, folders, number, weights):
        publish = _Publish(self, folders, number)
        if not weights.objects and weights.file is None:
            _publish_queue.settle(wait=True)
            publish(None, {})
            return
        try:
            folders.work.sync(str(number))
            _publish_queue.settle_to(self._queue, 1)  # Each that was asked for is to come.
            files = {name: TorchMember(part) for name, part in weights.objects.items()}
            step = self._queue.capture({**weights.tensors, **files})
        except errors.CheckpointError as error:
            logger.error("libckpt: checkpoint-%s: %s; stock torch saves instead", number, error)
            weights.write()
            _publish_queue.settle(wait=True)
            publish(None, {})
            return
        folders.work.note(str(number), {"step": step, "weights": weights.file})
        self._queue.post(step, publish, weights.file)

    def _publish_if_wanted(self, folders, number):
        """Publishes the folder now if something reads it now."""
        if self._is_read_now(folders, number):
            _publish_queue.settle(wait=True)
        if self._trainer.args.push_to_hub:
            self._trainer._push_from_checkpoint(str(folders.path(number)))

    def _is_read_now(self, folders, number):
        from transformers.trainer_callback import TrainerCallback

        args = self._trainer.args
        is_read = any(
            type(callback).on_save is not TrainerCallback.on_save
            for callback in self._trainer.callback_handler.callbacks
        )
        is_urgent = (folders.path(number) / SENTINEL).exists()
        return bool(is_read or is_urgent or args.load_best_model_at_end or args.push_to_hub)

    def rotate(self, folders):
        self._rotate(folders, folders.remove)

    def _rotate(self, folders, remove):
        args, state = self._trainer.args, self._trainer.state
        folders.rotate(args.save_total_limit, state.best_model_checkpoint, remove)


class _Publish:
    """Publishes one checkpoint; called when its members are on storage."""

    def __init__(self, owner, folders, number):
        self._owner, self._folders, self.number = owner, folders, str(number)
        self.paths = [folders.path(number)]

    def __call__(self, path, files):
        if files is None:  # A newer one overtook it on its way to storage.
            self._folders.work.drop(self.number)
            logger.warning(
                "libckpt: %s does not come: a newer save overtook it on its way to storage, which "
                "is slower than the Trainer saves; save less often, or to faster storage",
                self._folders.path(self.number),
            )
            return
        self._folders.publish(int(self.number), files)
        self._owner.rotate(self._folders)
        logger.info("libckpt: %s is complete", self._folders.path(self.number))
