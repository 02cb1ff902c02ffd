"""Resizing: no memory goes while a capture still reads it.

With a guard, tensors are read after the save returned. The session keeps tensors and storages that
the trainer drops, but a storage that is resized gives its memory back at once, even while it is
held.
So, once a session guards, the functions that resize let every running capture read its rest first,
and so does `set_`, which else would count as a write to what is captured.
"""

import functools
import weakref

import torch

_watched = weakref.WeakSet()
_replaced = []


def watch(registration):
    """From now on a resize waits for the registration's running capture."""
    _watched.add(registration)
    if _replaced:
        return
    for kind, name in (
        (torch.UntypedStorage, "resize_"),
        (torch.Tensor, "resize_"),
        (torch.Tensor, "resize_as_"),
        (torch.Tensor, "set_"),
    ):
        _replaced.append(name)
        setattr(kind, name, _after_captures(getattr(kind, name)))


def _after_captures(stock):
    @functools.wraps(stock)
    def resize(self, *arguments, **options):
        for registration in list(_watched):
            registration.finish()
        return stock(self, *arguments, **options)

    return resize
