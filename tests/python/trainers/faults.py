"""The things that a test does to a training while it runs: Ctrl-C, and an exception in its loop."""

import signal

_asked = []


def obey():
    """Ctrl-C raises also below a shell that has it ignored; SIGUSR1 asks for an exception."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, lambda *_: _asked.append(True))


def check():
    """Called in each step. Raises once it was asked for."""
    if _asked:
        raise RuntimeError("the training fails, as it was asked to")
