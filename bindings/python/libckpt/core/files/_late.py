"""Late: saves that were given up while storage failed. They come once it works again, unless
something newer is in their places by then."""

import logging

from libckpt import errors
from libckpt.core.files import _storage, _unsaved

logger = logging.getLogger("libckpt")

KEPT_MAX = 8  # Newer saves overtake older ones in memory, which has room for a few.


class Late:
    """Those of one queue, the oldest first."""

    def __init__(self):
        self._saves = []

    def __bool__(self):
        return bool(self._saves)

    def add(self, save):
        self._saves = [*self._saves, save][-KEPT_MAX:]

    def forget(self, paths=None):
        """Those that make these files, which are saved anew; by default all."""
        self._saves = [each for each in self._saves if paths and each.publish.paths != paths]

    def publish(self, directory, newest):
        """Publishes those that are on storage by now; `newest` is the newest step there."""
        while self._saves and newest is not None and newest >= self._saves[0].step:
            save = self._saves.pop(0)
            try:
                self._publish(save, *_storage.find_step(directory, save.step, save.weights))
            except (errors.CheckpointError, OSError) as error:
                logger.error("libckpt: %s is not published: %s", save.publish.paths[0], error)

    def _publish(self, save, path, files):
        is_newest = all(_unsaved.reason(each) is not None for each in save.publish.paths)
        if path is not None and is_newest:
            save.publish(path, files)
        elif hasattr(save.publish, "given_up"):
            save.publish.given_up()
