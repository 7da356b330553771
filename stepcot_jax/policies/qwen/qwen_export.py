"""Write a Qwen2.5 or Qwen2.5-VL as a checkpoint folder that transformers, and `qwen_loading`, read."""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from stepcot_jax.encoders.assignment import LAYOUTS
from stepcot_jax.encoders.weights import INDEX
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import sync_folder
from stepcot_jax.models.qwen_vl import QwenVl
from stepcot_jax.policies.qwen.qwen_names import OLD_TEXT, qwen_table

MOST_BYTES = 4 * 2**30
"""Of a shard."""

COPIED = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "video_preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.json", "chat_template.jinja",
)  # fmt: skip
"""Files of a checkpoint that training does not change."""


def name_tensors(params: Any, network: QwenVl, *, prefix: str = OLD_TEXT) -> dict[str, np.ndarray]:
    """Return parameters as the named tensors of a checkpoint, in their dtype; undoes `qwen_loading.assign_qwen`."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    tensors = {}
    for name, place in qwen_table([f"{prefix}norm.weight"], network.sizes, network.vision).items():
        leaf = np.asarray(flat[place.path])
        shape = LAYOUTS[place.layout].shape_before(leaf.shape)
        if place.layout not in ("same", "head_bias"):
            # A matrix stands as [out, in] in a file, however many axes the parameter or the tensor has.
            leaf = leaf.reshape(-1, shape[0]).T
        tensors[name] = np.ascontiguousarray(leaf.reshape(shape))
    return tensors


def write_qwen(
    folder: pathlib.Path,
    params: Any,
    network: QwenVl,
    *,
    source: pathlib.Path,
    dtype: DTypeLike = jnp.bfloat16,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Write a checkpoint."""
    if folder.exists():
        raise BadInput(f"{folder}: exists (expected a new folder)")
    if not (source / "config.json").is_file():
        raise BadInput(f"{source}: no config.json (expected the checkpoint that training started from)")
    with _whole_folder(folder) as partial:
        _copy(source, partial)
        _write_shards(partial, name_tensors(params, network), dtype=dtype, most_bytes=most_bytes)


def copy_files(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Copy the files of `COPIED` that a checkpoint has into a new folder, which appears when all are in it."""
    with _whole_folder(folder) as partial:
        _copy(source, partial)


@contextlib.contextmanager
def _whole_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make a folder beside `folder` that gets its name when the block ends, so that a folder of this name is whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    sync_folder(partial)
    partial.rename(folder)
    sync_folder(folder.parent)


def _copy(source: pathlib.Path, folder: pathlib.Path) -> None:
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _write_shards(
    folder: pathlib.Path, tensors: Mapping[str, np.ndarray], *, dtype: DTypeLike, most_bytes: int
) -> None:
    from safetensors.numpy import save_file

    width, shards, held = np.dtype(dtype).itemsize, list[list[str]](), most_bytes
    for name, tensor in tensors.items():
        held += tensor.size * width
        if held > most_bytes or not shards:
            shards.append([])
            held = tensor.size * width
        shards[-1].append(name)
    files, total = dict[str, str](), sum(tensor.size for tensor in tensors.values()) * width
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: tensors[name].astype(dtype, copy=False) for name in names}, folder / file, {"format": "pt"})
        # safetensors makes files that only their owner may read.
        (folder / file).chmod((folder / "config.json").stat().st_mode & 0o777)
        files |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
