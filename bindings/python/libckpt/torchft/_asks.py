"""Asks: requests and answers of two replica groups' transports, in a Store of the sender's.

    asks              how many were made
    ask/N             JSON: id, step, node, port, address, wants_stock
    ID/job            the sender's answer: the job that brings the state, or stock=true
    ID/ready          the receiver has opened it, or why not
    ID/end            how its part ended; the receiver may open the job anew
    ID/done           the receiver needs nothing of the sender any more

The Store is torch's own: its threads are no Python, and the tensors take another way.
"""

import datetime
import json
import secrets
import time

from torch.distributed import TCPStore

from libckpt import errors

CONNECT_SECONDS = 60.0


class Deadline:
    def __init__(self, seconds):
        self.seconds, self._ends = seconds, time.monotonic() + seconds

    def left(self):
        # Never 0, which a Store takes for no limit.
        return max(0.001, self._ends - time.monotonic())

    def delta(self):
        return datetime.timedelta(seconds=self.left())


class Store:
    """One end: a wait of it blocks its other calls, so each thread has its own."""

    def __init__(self, host, port, deadline):
        try:
            self._store = TCPStore(host, port, is_master=False, timeout=deadline.delta())
        except RuntimeError as error:
            raise errors.Unavailable(
                f"torchft: the sender's Store at {host}:{port} was not reached: timed out after "
                f"{deadline.seconds:g} s"
            ) from error

    def ask(self, **words):
        """The id under which the sender answers."""
        words["id"] = secrets.token_hex(8)
        self._store.set(f"ask/{self._store.add('asks', 1)}", json.dumps(words))
        return words["id"]

    def say(self, name, what, **words):
        self._store.set(f"{name}/{what}", json.dumps(words))

    def is_said(self, name, what):
        return self._store.check([f"{name}/{what}"])

    def hear(self, name, what, deadline):
        key = f"{name}/{what}"
        try:
            self._store.wait([key], deadline.delta())
        except RuntimeError as error:
            raise errors.Unavailable(
                f"torchft: no word on the {what} came from the other end: timed out after "
                f"{deadline.seconds:g} s"
            ) from error
        words = json.loads(self._store.get(key))
        self._store.delete_key(key)
        return words


class Asks:
    """The Store itself, of a transport that may have to send."""

    def __init__(self):
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.port = self._store.port
        self.words = self.connect()
        self._next = 1

    def connect(self):
        return Store("localhost", self.port, Deadline(CONNECT_SECONDS))

    def next(self, deadline):
        """The next ask; None: there is none in time. One thread calls it."""
        key = f"ask/{self._next}"
        try:
            self._store.wait([key], deadline.delta())
        except RuntimeError:
            return None
        self._next += 1
        ask = json.loads(self._store.get(key))
        self._store.delete_key(key)
        return ask

    def interrupt(self):
        """Ends a wait for the next one; from any thread."""
        self.words.ask(step=None)
