"""Cases as tensorflow_datasets examples: their features and values."""

import dataclasses
import functools
import json
import math
from typing import Any

import numpy as np

from stepcot_jax.data.records.cases import Case
from stepcot_jax.host.errors import BadInput


def import_tfds() -> Any:
    """Return the module tensorflow_datasets; `BadInput` if it is not installed."""
    try:
        import importlib_resources  # noqa: F401 - tensorflow_datasets needs it and does not say so
        import tensorflow_datasets
    except ImportError as error:
        raise BadInput(
            f"tensorflow_datasets is required and cannot be imported ({error}): pip install 'stepcot-jax[tfds]'"
        ) from None
    return tensorflow_datasets


def make_features() -> Any:
    """Return the features of an example, a `FeaturesDict`.

    The image is the unchanged content of its file. Labels are indices into the options in the dataset's metadata,
    -100 where a step is not annotated.
    """
    features = import_tfds().features
    text = features.Text
    return features.FeaturesDict(
        {
            "image": features.Tensor(shape=(), dtype=np.object_, doc="Content of the PNG or JPEG file."),
            "image_path": text(doc="Path of the file in the published folder."),
            "patient_id": text(doc="No patient is in two splits."),
            "origin": text(doc="Collection the image comes from."),
            "report": text(doc="The radiologist's report."),
            "labels": features.Tensor(shape=(None,), dtype=np.int32, doc="Label of each step; -100: not annotated."),
            "reasoning": features.Sequence(text(), doc="Reason given for each step's answer."),
            "boxes": features.Sequence(
                {"label": text(), **dict.fromkeys(("x", "y", "width", "height"), np.float64), "sentence": text()},
                doc="Where findings are, in pixels of the image.",
            ),
            "sex": text(doc="F, M, O or empty."),
            "age": features.Scalar(np.float64, doc="In years; NaN where unknown."),
            "view": text(doc="Projection, such as PA."),
            "provenance": text(doc="How the answers came about: JSON, names to values."),
        }
    )


@functools.cache
def _image_features() -> Any:
    """The image alone: parsing the other features would only cost time."""
    return import_tfds().features.FeaturesDict({"image": make_features()["image"]})


def read_image(example: bytes) -> bytes:
    """Return the content of the image file in a serialised example."""
    return _image_features().deserialize_example_np(example)["image"]


def make_example(case: Case, content: bytes) -> dict[str, Any]:
    """Return the values of a case's features; `content` is that of its image file."""
    values = dataclasses.asdict(case)
    boxes = [
        {name: value if isinstance(value, str) else float(value) for name, value in box.items()}
        for box in values["boxes"]
    ]
    return values | {
        "image": content,
        "labels": np.array(case.labels, np.int32),
        "reasoning": list(case.reasoning),
        "boxes": boxes,
        "age": math.nan if case.age is None else float(case.age),
        "provenance": json.dumps(dict(case.provenance), ensure_ascii=False),
    }
