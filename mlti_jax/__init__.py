"""Meta-learning with fewer tasks, in JAX."""

__version__ = "0.1.0"
