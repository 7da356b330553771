"""Convert parameters between the authors' PyTorch names and layouts and ours, either way.

With --to jax, a DEST without a suffix becomes a workdir, which other commands read like that of a run.
"""

import argparse
import json
import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stepcot_jax.export.authors import NETWORKS, drop_ignored, group_by_network, to_jax_tensors, to_torch_tensors
from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.terminal import name_command
from stepcot_jax.tools.convert.converted_workdir import check_destination, read_tensors, write_tensors
from stepcot_jax.tools.options import local_path
from stepcot_jax.training.state import flatten

if TYPE_CHECKING:
    from stepcot_jax.tools.convert.converted_workdir import Recipe


def _read_run(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Return each network's parameters from its best checkpoint by '/'-joined paths, image encoders included."""
    # Imported here: files do not need jax, which takes seconds.
    from stepcot_jax.training.checkpoints import read_best, restore_params

    folder = workdir / "checkpoints"
    latest, best = read_best(folder)
    params, tensors = {latest: restore_params(folder, latest)}, dict[str, np.ndarray]()
    for name in params[latest]:
        owner = "student" if name.startswith("student") else "teacher"
        step = best[owner].step if owner in best else latest
        if step not in params:
            params[step] = restore_params(folder, step)
        print(f"{name}: from the checkpoint of step {step}", file=sys.stderr)
        tensors |= flatten({name: params[step][name]})
    return tensors


def main(arguments: list[str] | None = None) -> int:
    """Convert a file; print one JSON line, or the content of a new workdir and the commands that read it."""
    flags = _parse(arguments)
    to_workdir = flags.to == "jax" and not pathlib.PurePath(flags.dest).suffix
    _check_flags(flags, to_workdir=to_workdir)
    print("\n".join(_convert(flags, to_workdir=to_workdir)))
    return 0


def _convert(flags: argparse.Namespace, *, to_workdir: bool) -> list[str]:
    """Convert a file; return the lines to print."""
    if not to_workdir:
        check_destination(flags.dest, overwrite=flags.force)
        if flags.to == "jax" and flags.dest.suffix != ".safetensors":
            raise BadInput(f"{flags.dest}: the suffix must be .safetensors with --to jax, or none for a workdir")
    recipe, source = _make_recipe(flags) if to_workdir else None, find_path(flags.source, "SOURCE")
    from_run = flags.to == "torch" and source.is_dir()
    tensors = _read_run(source) if from_run else read_tensors(source)
    if from_run and flags.network:
        prefix = f"{NETWORKS[flags.network]}/"
        tensors = {name: array for name, array in tensors.items() if name.startswith(prefix)}
    tensors, ignored = drop_ignored(tensors, flags.ignore)
    if recipe is not None:
        return _make_workdir(flags, source, tensors, recipe)
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
    return [json.dumps(report)]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot convert",
        description="Convert parameters between the authors' PyTorch names and layouts and ours.",
    )
    parser.add_argument("source", help="file to read; with --to torch also a run's workdir; or gs://, s3://")
    dest = "file to write; with --to jax also a new folder, a workdir"
    parser.add_argument("dest", type=local_path, help=dest)
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
    parser.add_argument("--force", action="store_true", help="replace the file DEST")
    workdir = parser.add_argument_group("a workdir (--to jax, DEST a new folder)")
    chain = "data folder or chain.json: the steps; or gs://, s3://"
    workdir.add_argument("--chain", metavar="DATA", help=chain)
    workdir.add_argument("--config", metavar="NAME", help="config of the training (default: paper)")
    workdir.add_argument("--image-encoder", metavar="WEIGHTS", help="frozen image encoder, if the config names none")
    workdir.add_argument("--text-encoder", metavar="WEIGHTS", help="frozen text encoder, if the config names none")
    return parser.parse_args(arguments)


def _check_flags(flags: argparse.Namespace, *, to_workdir: bool) -> None:
    """Refuse flags of a workdir for a file, and a workdir without a chain."""
    if not to_workdir:
        for name in ("chain", "config", "image_encoder", "text_encoder"):
            if getattr(flags, name) is not None:
                raise BadInput(f"--{name.replace('_', '-')} is for a workdir (--to jax, DEST a new folder)")
    elif flags.chain is None:
        raise BadInput(
            f"--chain is required to write the workdir {flags.dest} (the data folder, or a chain.json with name, "
            "question and options of each step); DEST.safetensors writes a file"
        )


def _make_recipe(flags: argparse.Namespace) -> "Recipe":
    """Return the settings that a workdir needs besides the tensors; a chain on a store is downloaded first."""
    chain = find_path(flags.chain, "--chain")
    if not chain.exists():
        raise BadInput(f"--chain: {flags.chain} does not exist")
    root = flags.chain.rstrip("/").rpartition("/")[0] if is_address(flags.chain) else str(chain.parent)
    root = root if chain.is_file() else flags.chain
    # Imported here: files do not need jax, which takes seconds.
    from stepcot_jax.tools.convert.converted_workdir import Recipe

    return Recipe(flags.config or "paper", chain, root, flags.image_encoder or "", flags.text_encoder or "")


def _make_workdir(
    flags: argparse.Namespace, source: pathlib.Path, tensors: Mapping[str, Any], recipe: "Recipe"
) -> list[str]:
    from stepcot_jax.tools.convert.converted_workdir import write_workdir

    try:
        networks = group_by_network(tensors, network=flags.network)
        content = write_workdir(flags.dest, networks, recipe, source=source)
    except BadInput as error:
        raise BadInput(f"{flags.source}: {error}") from None
    numbers = sum(int(np.size(array)) for arrays in networks.values() for array in arrays.values())
    lines = [f"{flags.dest}: {len(tensors)} tensors, {numbers:,} numbers: {', '.join(networks)}"]
    if content["fresh"]:
        lines.append(f"not in the file, random: {', '.join(content['fresh'])}")
    folder = shlex.quote(str(flags.dest))
    commands = (
        f"predict IMAGE --checkpoint={folder}",
        f"export --checkpoint={folder} --out=FOLDER",
        f"train --config=NAME --workdir=FOLDER --config.start.checkpoint={folder}",
    )
    return [*lines, *(f"next: {name_command()} {command}" for command in commands)]


if __name__ == "__main__":
    run_tool(main)
