"""Progress: one line on the terminal of rank 0 that shows how far a long restore is.

Where standard error is no terminal, a log would fill with it: only what a restore waits for is
logged, whenever the reason changes.
"""

import contextlib
import logging
import shutil
import sys
import time

logger = logging.getLogger("libckpt")

SECONDS_BEFORE = 1.0  # A shorter restore needs no bar.
SECONDS_BEFORE_A_LOG = 5.0
BAR_COLUMNS_MIN, BAR_COLUMNS_MAX = 6, 24
ERASE = "\r\x1b[K"


@contextlib.contextmanager
def shown(client, rank):
    """While it lasts, restores of the client show their progress."""
    stream = sys.stderr
    if rank != 0:
        yield
        return
    watch = Bar(stream) if _is_terminal(stream) else Waits()
    client.watch_restores(watch)
    try:
        yield
    finally:
        client.watch_restores(None)
        watch.erase()


class Waits:
    """Logs what a restore waits for."""

    def __init__(self, clock=time.monotonic):
        self._clock, self._began = clock, clock()
        self._logged = ""

    def __call__(self, phase, done, total, source, waiting):
        is_new = phase == "waiting" and waiting != self._logged
        if is_new and self._clock() - self._began >= SECONDS_BEFORE_A_LOG:
            self._logged = waiting
            logger.warning("libckpt: restore: it waits: %s", waiting)

    def erase(self):
        pass


class Bar:
    def __init__(self, stream, clock=time.monotonic):
        self._stream, self._clock = stream, clock
        self._began = self._phase_began = clock()
        self._doing, self._is_drawn = None, False

    def __call__(self, phase, done, total, source, waiting):
        now = self._clock()
        if phase == "ended":
            self.erase()  # Before the library's own line about it.
            return
        if (phase, source) != self._doing:
            self._doing, self._phase_began = (phase, source), now
        if now - self._began < SECONDS_BEFORE:
            return
        columns = shutil.get_terminal_size().columns - 1
        if phase == "waiting":
            line = f"libckpt: restore: {waiting or 'waits for the daemon and the other ranks'}"
        else:
            line = _line(done, total, source, now - self._phase_began, columns)
        self._write(ERASE + line[:columns])
        self._is_drawn = True

    def erase(self):
        """Leaves the terminal as if nothing had been written."""
        if self._is_drawn:
            self._write(ERASE)
            self._is_drawn = False

    def _write(self, text):
        # The terminal may be gone; training goes on.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _line(done, total, source, seconds, columns):
    share = done / total if total else 0.0
    begin, end = f"libckpt: restore from {source} ", f"{share:4.0%} of {_size(total)}"
    if 0 < done < total and seconds > 0:
        rate = done / seconds
        end += f", {_size(rate)}/s, {_duration((total - done) / rate)} left"
    width = min(columns - len(begin) - len(end) - len("[]"), BAR_COLUMNS_MAX)
    if width < BAR_COLUMNS_MIN:
        return begin + end.lstrip()
    full = int(share * width)
    return f"{begin}[{'#' * full}{'.' * (width - full)}]{end}"


def _is_terminal(stream):
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return stream.isatty()
    return False


def _size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.1f} TiB"


def _duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
