"""Trained networks that read radiographs, `load(workdir).read(image)`, or answer questions about them."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("ImageReader", "load", "load_trained"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepcot_jax.predict import image_reader, loading  # imported on first use: jax takes seconds

    return loading.load if name == "load" else getattr(image_reader, name)
