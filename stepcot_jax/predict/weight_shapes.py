"""Compare the names and shapes of stored weights with those of the networks that the settings describe."""

import dataclasses
import pathlib

import jax
import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.errors import BadInput
from stepcot_jax.predict.exported_model import ENCODER, StoredParts
from stepcot_jax.run.stored_reading import read_shapes
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.training.state import Params


def check_shapes(
    workdir: pathlib.Path, parts: StoredParts, networks: Networks, preprocessing: Preprocessing, *, exported: bool
) -> None:
    """Refuse weights whose names or shapes do not fit the settings; an export has only what reads images."""
    text, frozen = parts.text_features, parts.frozen
    if frozen is None:
        side = preprocessing.size
        batch = {"images": jax.ShapeDtypeStruct((1, side, side, 3), np.float32)}
    else:
        batch = {"image_features": jax.ShapeDtypeStruct((1, frozen.width), np.float32)}
    used = networks.teacher.text and (not exported or "teacher" in parts.params)
    if used != (text is not None):
        stored = "no prompt vectors" if text is None else f"prompt vectors {text.shape}"
        raise BadInput(f"{workdir}: config.teacher.text={networks.teacher.text} does not fit the stored {stored}")
    inputs = (*(() if text is None else text.shape), 0 if frozen is None else frozen.width)
    known = None if exported else read_shapes(workdir, inputs=inputs)
    if known is not None and all(_list_shapes(tree) == known for tree in parts.params.values()):
        return  # tracing the networks takes a third of the time to a first answer
    if used != networks.teacher.text:  # an export of the student alone has no prompts, and nothing of the teacher
        networks = dataclasses.replace(networks, teacher=networks.teacher.clone(text=False))
    shapes = jax.eval_shape(
        lambda batch: init_params(networks, key=jax.random.key(0), batch=batch, text_features=text), batch
    )
    for name, tree in parts.params.items():
        expected = _list_shapes({part: shapes[part] for part in shapes if not exported or part in (name, ENCODER)})
        found = _list_shapes(tree)
        other = sorted(path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path))
        if other:
            path = other[0]
            raise BadInput(
                f"{workdir}, weights of the {name}, {path}: {found.get(path, 'missing')} does not fit settings.json, "
                f"which needs {expected.get(path, 'no such tensor')}; {len(other)} tensors differ"
            )


def _list_shapes(tree: Params) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}
