"""Convert parameters between the authors' PyTorch names and layouts and ours, either way.

    python -m stepcot_jax.convert SOURCE DEST --to {jax,torch}

The authors' side is a .safetensors or, with torch installed, a .pt or .pth: tensors named NETWORK/NAME or
NETWORK.NAME (NETWORK: teacher, student, proj_t or proj_s), nested mappings of them, or with --network the bare
state_dict of one network. Ours is a .safetensors of '/'-joined Flax paths such as
teacher/heads/fusion_0/linear/kernel. With --to torch, SOURCE may be the workdir of a run: the best weights of each
network are converted.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from stepcot_jax.convert import torch_reference
from stepcot_jax.convert.torch_names import NETWORKS
from stepcot_jax.encoders import weights
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import writing_whole
from stepcot_jax.host.text import shorten

TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def to_jax_tensors(tensors: Mapping[str, Any], *, network: str | None = None) -> dict[str, np.ndarray]:
    """Convert the authors' tensors to ours.

    Args:
      tensors: NETWORK/NAME or NETWORK.NAME -> arrays, or NAME -> arrays of the one `network`.
      network: "teacher", "student", "proj_t" or "proj_s" if the names do not include it.

    Returns:
      '/'-joined paths -> float32 arrays.

    Raises:
      BadInput: a name belongs to no network, or the tensors do not match the networks; lists all of them.
    """
    grouped: dict[str, dict[str, Any]] = {}
    for name, array in tensors.items():
        owner, rest = (network, name) if network else _split_torch_name(name)
        if rest in grouped.setdefault(owner, {}):
            raise BadInput(f"{shorten(f'{owner}/{rest}')} appears twice, once as {shorten(name)}")
        grouped[owner][rest] = array
    if not grouped:
        raise BadInput("the source holds no tensors")
    return torch_reference.flatten(torch_reference.from_torch_networks(grouped))


def to_torch_tensors(tensors: Mapping[str, Any], *, network: str | None = None) -> dict[str, np.ndarray]:
    """Convert our tensors to the authors'; the inverse of `to_jax_tensors`.

    Args:
      tensors: '/'-joined paths -> arrays.
      network: the authors' name of the only network, to omit it from the result.

    Returns:
      NETWORK/NAME -> arrays, or NAME -> arrays of the one `network`.

    Raises:
      BadInput: a path belongs to no network, or the tensors do not match the networks; lists all of them.
    """
    torch_reference.check_numbers(tensors)
    unknown = [shorten(name) for name in tensors if name.partition("/")[0] not in NETWORKS.values() or "/" not in name]
    if unknown:
        shown = torch_reference.list_problems(unknown, ", ")
        raise BadInput(f"unknown tensors: {shown}; names start with {', '.join(NETWORKS.values())} and '/'")
    if not tensors:
        raise BadInput("the source holds no tensors")
    found = torch_reference.to_torch_networks(torch_reference.unflatten(tensors))
    if network is None:
        return torch_reference.flatten(found)
    if set(found) != {network}:
        raise BadInput(f"--network {network}: the source holds {', '.join(found)}")
    return found[network]


def drop_ignored(tensors: Mapping[str, Any], prefixes: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the tensors that match no prefix, and the number of tensors that match each.

    A prefix matches a whole name ("teacher/clip_model.") or a name within its network ("clip_model.").
    """
    kept, counts = {}, dict.fromkeys(prefixes, 0)
    for name, array in tensors.items():
        inside = name.partition("/")[2] if "/" in name else name.partition(".")[2]
        matched = next((prefix for prefix in prefixes if name.startswith(prefix) or inside.startswith(prefix)), None)
        if matched is None:
            kept[name] = array
        else:
            counts[matched] += 1
    return kept, counts


def _read_run(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Return each network's parameters from its best checkpoint by '/'-joined paths, image encoders included."""
    # Imported here: files do not need jax, which takes seconds.
    from stepcot_jax.training.stored_params import read_best, restore_params

    folder = workdir / "checkpoints"
    latest, best = read_best(folder)
    params, tensors = {latest: restore_params(folder, latest)}, dict[str, np.ndarray]()
    for name in params[latest]:
        owner = "student" if name.startswith("student") else "teacher"
        step = best[owner].step if owner in best else latest
        if step not in params:
            params[step] = restore_params(folder, step)
        print(f"{name}: from the checkpoint of step {step}", file=sys.stderr)
        tensors |= torch_reference.flatten({name: params[step][name]})
    return tensors


def _split_torch_name(name: str) -> tuple[str, str]:
    for separator in ("/", "."):
        network, found, rest = name.partition(separator)
        if found and network in NETWORKS:
            return network, rest
    raise BadInput(
        f"{shorten(name)} does not start with a network ({', '.join(NETWORKS)}) and '/' or '.'; pass --network for a "
        "bare state_dict"
    )


def read_tensors(path: pathlib.Path) -> dict[str, Any]:
    """Read tensors by name; names of nested mappings are joined with '/'.

    Args:
      path: a .safetensors, or a .pt or .pth of tensors in nested mappings.

    Returns:
      NumPy arrays; other values of a .pt are returned unchanged.

    Raises:
      BadInput: the file is missing, broken, of another kind or needs unpickling, or torch is not installed.
    """
    _check_suffix(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.suffix == ".safetensors":
        return dict(weights.read_tensors(path))
    found = weights.load_torch(path)
    if not isinstance(found, Mapping):
        raise BadInput(f"{path} holds a {type(found).__name__}; expected a state_dict or a dict of them")
    return {name: weights.to_numpy(leaf) for name, leaf in torch_reference.flatten(found).items()}


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], *, overwrite: bool = False) -> None:
    """Write named tensors atomically.

    Args:
      path: a .safetensors, or a .pt or .pth, which maps each network to its state_dict.
      tensors: NETWORK/NAME or NAME -> arrays.
      overwrite: replace an existing file.

    Raises:
      BadInput: the file exists without `overwrite`, its folder does not exist, or the suffix is unknown.
    """
    check_destination(path, overwrite=overwrite)
    with writing_whole(path) as file:
        if path.suffix in TORCH_SUFFIXES:
            _write_torch(path, file, tensors)
        else:
            import safetensors.numpy

            # safetensors ignores strides and writes the underlying memory.
            whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
            safetensors.numpy.save_file(whole, file.name)  # by name: a file object would need twice the memory


def check_destination(path: pathlib.Path, *, overwrite: bool) -> None:
    """Check a destination of `write_tensors` before long work.

    Raises:
      BadInput: as `write_tensors`.
    """
    _check_suffix(path)
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path} exists; choose another name, or pass --force to replace a file")
    if not path.parent.is_dir():
        raise BadInput(f"{path}: the folder {path.parent} does not exist")
    if path.suffix in TORCH_SUFFIXES:
        weights.import_torch(path)


def _check_suffix(path: pathlib.Path) -> None:
    if path.suffix not in SUFFIXES:
        raise BadInput(f"{path}: the suffix {path.suffix!r} is not one of {', '.join(SUFFIXES)}")


def _write_torch(path: pathlib.Path, file: BinaryIO, tensors: Mapping[str, np.ndarray]) -> None:
    torch = weights.import_torch(path)
    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        network, _, rest = name.rpartition("/")
        # Arrays from JAX are read-only, torch tensors cannot be.
        tensor = torch.from_numpy(np.array(array))
        (tree.setdefault(network, {}) if network else tree)[rest] = tensor
    torch.save(tree, file)


def main(arguments: list[str] | None = None) -> int:
    """Convert a file and print one JSON line."""
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.convert",
        description="Convert parameters between the authors' PyTorch names and layouts and ours.",
    )
    parser.add_argument("source", type=pathlib.Path, help="file to read; with --to torch also a run's workdir")
    parser.add_argument("dest", type=pathlib.Path, help="file to write")
    parser.add_argument("--to", choices=("jax", "torch"), required=True, help="names and layouts to write")
    parser.add_argument(
        "--network", choices=tuple(NETWORKS), help="the authors' side is the bare state_dict of this network"
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PREFIX",
        help="skip tensors with this prefix, such as frozen encoders; may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="replace DEST")
    flags = parser.parse_args(arguments)
    check_destination(flags.dest, overwrite=flags.force)
    if flags.to == "jax" and flags.dest.suffix != ".safetensors":
        raise BadInput(f"{flags.dest}: the suffix must be .safetensors with --to jax")
    from_run = flags.to == "torch" and flags.source.is_dir()
    tensors = _read_run(flags.source) if from_run else read_tensors(flags.source)
    tensors, ignored = drop_ignored(tensors, flags.ignore)
    convert = to_jax_tensors if flags.to == "jax" else to_torch_tensors
    try:
        converted = convert(tensors, network=flags.network)
    except BadInput as error:
        raise BadInput(f"{flags.source}: {error}") from None
    write_tensors(flags.dest, converted, overwrite=flags.force)
    report = {
        "file": str(flags.dest),
        "tensors_read": len(tensors),
        "tensors_written": len(converted),
        "numbers": sum(int(array.size) for array in converted.values()),
        "ignored": ignored,
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_tool(main)
