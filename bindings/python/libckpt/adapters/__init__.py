"""Adapters: libckpt's knowledge of each framework. One is imported when its framework was."""

from libckpt.core import _frameworks

_frameworks.register("numpy", "libckpt.adapters._arrays")
_frameworks.register("torch", "libckpt.adapters.torch._adapter")
_frameworks.register("jax", "libckpt.adapters.jax._adapter")
