"""libckpt for torchft: a replica group that heals gets the state from a live group's daemon.

    manager = torchft.Manager(..., checkpoint_transport=libckpt.torchft.Transport("my-run"))

The live group copies its state into the memory of its daemon, and trains on. The daemons bring it
to the healing group's node, verified. Other state goes by torchft's HTTPTransport.
"""

import json
import logging
from datetime import timedelta
from urllib.parse import urlsplit

from torchft.checkpointing import CheckpointTransport, HTTPTransport

from libckpt import errors
from libckpt._init import check
from libckpt.adapters.torch import _plain_distributed
from libckpt.adapters.torch._asks import Asks, Store
from libckpt.core import _settings, _transfer
from libckpt.core._transfer import Deadline
from libckpt.torchft import _serving

__all__ = ["Transport"]

logger = logging.getLogger("libckpt")

TIMEOUT = timedelta(seconds=60)  # torchft's own default.
OURS = "libckpt "  # Before our metadata; stock's is an address.


class Transport(CheckpointTransport):
    """One for each rank of a replica group.

    name: the first part of the names that the transfers' jobs have. timeout, num_chunks: those of
    the HTTPTransport beside it. allow_pickle: of what only a pickle can hold; without it such a
    state goes by HTTPTransport, which pickles. The others: options of libckpt.init.
    """

    def __init__(self, name, *, timeout=None, num_chunks=0, allow_pickle=False, node=None,
                 interface=None, port=None, runtime_dir=None, memory_budget=None,
                 daemon_path=None):  # fmt: skip
        super().__init__()
        options = {"node": node, "interface": interface, "port": port, "daemon_path": daemon_path,
                   "runtime_dir": runtime_dir, "memory_budget": memory_budget}  # fmt: skip
        allow_pickle = _settings.flag("allow_pickle", allow_pickle)
        check(**options)
        self._stock = HTTPTransport(timeout or TIMEOUT, num_chunks)
        self._daemon = _transfer.LocalDaemon(options, allow_pickle)
        self._wants_stock = self._is_off()  # From a failure on, too.
        self._asks = None if self._wants_stock else Asks()
        self._serving = None  # The state on offer now.
        self._sender = None if self._wants_stock else _serving.Sender(
            name, self._asks, self._daemon, self._stock
        )  # fmt: skip

    def _is_off(self):
        if _settings.is_true(_settings.configured("disable")):
            return True
        if _settings.configured("dir"):
            logger.error(
                "libckpt: torchft: LIBCKPT_DIR, or dir in the configuration file, would hold for "
                "the jobs that bring a state, which are in memory only: give dir in the code of "
                "your own job; until then torchft's HTTPTransport brings it"
            )
            return True
        return False

    def metadata(self):
        stock = self._stock.metadata()
        if self._asks is None:
            return stock
        return OURS + json.dumps({"port": self._asks.port, "stock": stock})

    # --- sending

    def send_checkpoint(self, dst_ranks, step, state_dict, timeout):
        """Returns at once; `disallow_checkpoint` waits for what reads the state."""
        if self._asks is None:
            self._stock.send_checkpoint(dst_ranks, step, state_dict, timeout)
            return
        self.disallow_checkpoint()
        deadline = Deadline(timeout.total_seconds())
        self._serving = _serving.Serving(self._sender, len(dst_ranks), step, state_dict, deadline)

    def disallow_checkpoint(self):
        if self._serving is not None:
            serving, self._serving = self._serving, None
            serving.stop()
        self._stock.disallow_checkpoint()

    def shutdown(self, wait=True):
        self.disallow_checkpoint()
        if wait and self._sender is not None:
            self._sender.join()
        self._stock.shutdown(wait)

    # --- receiving

    def recv_checkpoint(self, src_rank, metadata, step, timeout):
        """The state, with its tensors on the CPU. torchft's HTTPTransport brings what cannot come
        by the daemons: at once, or the next time if the sender cannot go back. Then it raises."""
        deadline = Deadline(timeout.total_seconds())
        if not metadata.startswith(OURS):
            return self._stock.recv_checkpoint(src_rank, metadata, step, timeout)
        source = json.loads(metadata.removeprefix(OURS))
        try:
            state = self._receive(source, src_rank, step, deadline)
        except errors.CheckpointError as error:
            self._wants_stock = True
            logger.error("libckpt: receive step %d: %s; the next is left to torchft's "
                         "HTTPTransport", step, error)  # fmt: skip
            raise
        return state

    def _receive(self, source, src_rank, step, deadline):
        host, daemon = urlsplit(source["stock"]).hostname, self._daemon
        address = daemon.address(host)
        store = Store(host, source["port"], deadline)
        name = store.ask(step=step, node=daemon.node, port=daemon.port, address=address,
                         wants_stock=self._wants_stock)  # fmt: skip
        state = _transfer.receive(daemon, store, name, step, deadline)
        if state is None:
            if daemon.failure is not None and not self._wants_stock:
                self._wants_stock = True
                logger.error("libckpt: receive step %d: %s; torchft's HTTPTransport brings it, and "
                             "the next ones", step, daemon.failure)  # fmt: skip
            return self._stock.recv_checkpoint(src_rank, source["stock"], step, deadline.delta())
        return _plain_distributed.from_plain(state)
