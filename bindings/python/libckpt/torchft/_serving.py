"""Serving: a state that may not change yet, handed to the groups that ask for it.

A thread copies it into the daemon's memory, for each group that asks; another one waits while the
daemon sends it. By then the state may change again.
"""

import logging
import threading

import torch

from libckpt.adapters.torch import _plain_distributed
from libckpt.core import _signals, _transfer

logger = logging.getLogger("libckpt")


class Sender:
    """Sends the states of one transport."""

    def __init__(self, name, asks, daemon, stock):
        self._name, self.asks, self._daemon, self.stock = name, asks, daemon, stock
        self._threads = []  # Those that wait for what a daemon sends.

    def send(self, ask, step, state, deadline):
        """False: stock is to send it."""
        sending = _transfer.Sending(self._daemon, self._name, ask, deadline)
        try:
            sending.capture(step, _plain_distributed.to_plain(state), self.asks.words)
        except Exception as error:  # Stock may be able to send the state.
            sending.give_up()
            _signals.raise_of_handler(error)
            logger.error("libckpt: send step %d to %s: %s; torchft's HTTPTransport sends it",
                         step, ask["node"], error)  # fmt: skip
            return False
        thread = threading.Thread(
            target=sending.finish, args=(step, self.asks.connect()), daemon=True
        )
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        return True

    def join(self):
        for thread in self._threads:
            thread.join()


class Serving:
    def __init__(self, sender, count, step, state, deadline):
        self._sender, self._asks = sender, sender.asks
        self._count, self._step, self._state, self._deadline = count, step, state, deadline
        self._is_over = self._has_stock = False
        has_device = torch.accelerator.is_available()
        self._device = torch.accelerator.current_device_index() if has_device else None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        """When it returns, the state may change. Groups that have not asked do not get it."""
        self._is_over = True
        if self._thread.is_alive():
            self._asks.interrupt()
            self._thread.join()

    def _run(self):
        if self._device is not None:
            torch.accelerator.set_device_index(self._device)
        served = 0
        while served < self._count and not self._is_over:
            ask = self._asks.next(self._deadline)
            if ask is None:
                logger.warning("libckpt: send step %d: %d of %d groups asked for it in %g s",
                               self._step, served, self._count, self._deadline.seconds)  # fmt: skip
                return
            # Else it was made in an attempt that is over.
            if ask["step"] == self._step and not self._asks.words.is_said(ask["id"], "done"):
                self._serve(ask)
                served += 1

    def _serve(self, ask):
        if not ask["wants_stock"]:
            if self._sender.send(ask, self._step, self._state, self._deadline):
                return
        if not self._has_stock:
            self._sender.stock.send_checkpoint(
                [], self._step, self._state, self._deadline.delta()
            )
            self._has_stock = True
        for what in ("job", "end"):  # The receiver waits for one of them.
            self._asks.words.say(ask["id"], what, stock=True)
