"""Scalers: the state of torch's GradScaler, without waiting for the GPU.

Its state_dict() makes Python numbers of two tensors, for which it waits until the GPU has done all
that is queued. A capture copies the tensors as they lie; a restore makes the numbers.
"""

from torch import amp

from libckpt.core._item_kinds import Number

_READERS = ("state_dict", "get_scale", "_get_scale_async", "_get_growth_tracker")


def state_of(owner):
    """What its state_dict() has, with Numbers for what lies in tensors; None: it is no scaler, or
    one whose class has methods of its own."""
    stock = getattr(amp, "GradScaler", None)
    if stock is None or not isinstance(owner, stock) or not owner.is_enabled():
        return None
    if any(getattr(type(owner), name) is not getattr(stock, name, None) for name in _READERS):
        return None
    scale, tracker = getattr(owner, "_scale", None), getattr(owner, "_growth_tracker", None)
    if scale is None or tracker is None:
        return None  # It has scaled nothing yet: its numbers are Python's.
    return {
        "scale": Number(scale),
        "growth_factor": owner.get_growth_factor(),
        "backoff_factor": owner.get_backoff_factor(),
        "growth_interval": owner.get_growth_interval(),
        "_growth_tracker": Number(tracker),
    }
