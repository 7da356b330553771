"""Step-CoT in JAX: a seven-step reading of chest radiographs, taught by a graph and distilled into a chain."""

__version__ = "0.1.0"
