"""Networks that a run has trained: loaded from its workdir without its data, and made to read radiographs."""

from stepcot_jax.trained.loading import Trained, load_trained
from stepcot_jax.trained.reader import Reader, Reading
from stepcot_jax.trained.stored_reading import write_reading

__all__ = ["Reader", "Reading", "Trained", "load_trained", "write_reading"]
