"""The adapter for jax."""
