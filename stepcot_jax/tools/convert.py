"""Convert parameters between the authors' PyTorch names and layouts and ours, either way.

With --to jax, a DEST without a suffix becomes a workdir, which other commands read like that of a run.
"""

import argparse
import contextlib
import json
import pathlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.sources.csv_table import read_chain
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.encoders import weights
from stepcot_jax.export.authors import (
    NETWORKS,
    drop_ignored,
    find_sizes,
    from_torch_networks,
    group_by_network,
    to_jax_tensors,
    to_torch_tensors,
)
from stepcot_jax.host.array_files import save_safetensors
from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import digest_file, writing_folder, writing_whole
from stepcot_jax.host.own_folder import save
from stepcot_jax.host.terminal import Terminal, name_command
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.inputs import encode_prompts
from stepcot_jax.run.networks import load_frozen_encoder, make_networks
from stepcot_jax.run.settings import Settings, load_settings, write_settings
from stepcot_jax.run.stored import CONVERTED_FILE, write_reading
from stepcot_jax.systems.networks import init_params
from stepcot_jax.tools.options import add, local_path
from stepcot_jax.training.checkpoints import Checkpoints, read_best, restore_params
from stepcot_jax.training.state import Params, TrainState, flatten


def _read_run(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Return each network's parameters from its best checkpoint by '/'-joined paths, image encoders included."""
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
    print("\n".join(_convert_to_workdir(flags) if to_workdir else _convert_to_file(flags)))
    return 0


def _read(flags: argparse.Namespace) -> tuple[pathlib.Path, dict[str, Any], dict[str, int]]:
    """Return the source, its tensors by name, and the number of ignored ones by prefix."""
    source = find_path(flags.source, "SOURCE")
    from_run = flags.to == "torch" and source.is_dir()
    tensors = _read_run(source) if from_run else read_tensors(source)
    if from_run and flags.network:
        prefix = f"{NETWORKS[flags.network]}/"
        tensors = {name: array for name, array in tensors.items() if name.startswith(prefix)}
    return source, *drop_ignored(tensors, flags.ignore)


@contextlib.contextmanager
def _naming(source: str) -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None


def _convert_to_file(flags: argparse.Namespace) -> list[str]:
    check_destination(flags.dest, overwrite=flags.force)
    if flags.to == "jax" and flags.dest.suffix != ".safetensors":
        raise BadInput(f"{flags.dest}: the suffix must be .safetensors with --to jax, or none for a workdir")
    _, tensors, ignored = _read(flags)
    convert = to_jax_tensors if flags.to == "jax" else to_torch_tensors
    with _naming(flags.source):
        converted = convert(tensors, network=flags.network)
    write_tensors(flags.dest, converted)
    report = {"file": str(flags.dest), "tensors_read": len(tensors), "tensors_written": len(converted)}
    numbers = sum(int(array.size) for array in converted.values())
    return [json.dumps({**report, "numbers": numbers, "ignored": ignored})]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot convert",
        description="Convert parameters between the authors' PyTorch names and layouts and ours.",
    )
    parser.add_argument("source", help="file to read; with --to torch also a run's workdir; or gs://")
    dest = "file to write; with --to jax also a new folder, a workdir"
    parser.add_argument("dest", type=local_path, help=dest)
    add(parser, "--to", "names and layouts to write", choices=("jax", "torch"), required=True)
    add(parser, "--network", "the authors' side is the bare state_dict of this network", choices=tuple(NETWORKS))
    skipped = "skip tensors with this prefix, such as frozen encoders; may be repeated"
    add(parser, "--ignore PREFIX", skipped, [], action="append")
    add(parser, "--force", "replace the file DEST")
    workdir = parser.add_argument_group("a workdir (--to jax, DEST a new folder)")
    add(workdir, "--chain DATA", "data folder or chain.json: the steps; or gs://")
    add(workdir, "--config NAME", "config of the training (default: paper)")
    add(workdir, "--image-encoder WEIGHTS", "frozen image encoder, if the config names none")
    add(workdir, "--text-encoder WEIGHTS", "frozen text encoder, if the config names none")
    return parser.parse_args(arguments)


def _check_flags(flags: argparse.Namespace, *, to_workdir: bool) -> None:
    if not to_workdir:
        for name in ("chain", "config", "image_encoder", "text_encoder"):
            if getattr(flags, name) is not None:
                raise BadInput(f"--{name.replace('_', '-')} is for a workdir (--to jax, DEST a new folder)")
    elif flags.chain is None:
        raise BadInput(
            f"--chain is required to write the workdir {flags.dest} (the data folder, or a chain.json with name, "
            "question and options of each step); DEST.safetensors writes a file"
        )


def _convert_to_workdir(flags: argparse.Namespace) -> list[str]:
    """Write the workdir of a run that was not trained here, an error leaves none; return the lines to print."""
    data = find_path(flags.chain, "--chain")
    if not data.exists():
        raise BadInput(f"--chain: {flags.chain} does not exist")
    source, tensors, _ = _read(flags)
    with _naming(flags.source):
        networks = group_by_network(tensors, network=flags.network)
        if "teacher" not in networks:
            raise BadInput(f"found {', '.join(networks)}; a workdir needs the teacher's tensors")
        sizes, converted = find_sizes(networks), from_torch_networks(networks)
        settings, chain = _read_settings(flags, data, sizes, converted)
        _check_chain(chain, sizes, data)
        with writing_folder(flags.dest) as partial:
            fresh = _write(partial, converted, settings, chain, source=source)
            load_trained(partial)
    numbers = sum(int(np.size(array)) for arrays in networks.values() for array in arrays.values())
    lines = [f"{flags.dest}: {len(tensors)} tensors, {numbers:,} numbers: {', '.join(networks)}"]
    lines += [f"not in the file, random: {', '.join(fresh)}"] if fresh else []
    folder = shlex.quote(str(flags.dest))
    commands = (
        f"predict IMAGE --checkpoint={folder}",
        f"export --checkpoint={folder} --out=FOLDER",
        f"train --config=NAME --workdir=FOLDER --config.start.checkpoint={folder}",
    )
    return [*lines, *(f"next: {name_command()} {command}" for command in commands)]


def _read_settings(
    flags: argparse.Namespace, data: pathlib.Path, sizes: Mapping[str, int], converted: Params
) -> tuple[Settings, Chain]:
    folder = flags.chain.rstrip("/").rpartition("/")[0] if is_address(flags.chain) else str(data.parent)
    has_memory = "memory_start" in converted["teacher"]
    changes: dict[str, Any] = {
        "job": "distill" if "student" in converted else "teacher",
        "data.source": "folder",
        "data.root": folder if data.is_file() else flags.chain,
        "teacher.width": sizes["teacher_width"],
        "teacher.num_heads": sizes["num_heads"],
        "teacher.num_layers": sizes["num_layers"],
        "teacher.memory": has_memory,
        "teacher.write_back": has_memory,
        "teacher.text": True,
        "student.width": sizes.get("student_width"),
        "loss.projection_width": sizes.get("projection_width"),
        "image_encoder.weights": flags.image_encoder,
        "prompts.weights": flags.text_encoder,
    }
    chain = read_chain(data) if data.is_file() else None
    if chain is not None:
        changes["data.step_names"] = tuple(step.name for step in chain.steps)
    changes = {name: value for name, value in changes.items() if value is not None}
    try:
        settings = load_settings(flags.config or "paper", **changes)
    except BadInput as error:
        if flags.image_encoder and flags.text_encoder:
            raise
        raise BadInput(f"{error}; --image-encoder and --text-encoder name the frozen encoders") from None
    names = ("layout", "step_names", "on_bad_record", "single_label", "labels_from")
    how = {name: getattr(settings.data, name) for name in names}
    return settings, chain or read_source(data, require_images=False, **how).chain


def _check_chain(chain: Chain, sizes: Mapping[str, int], data: pathlib.Path) -> None:
    if chain.num_steps != sizes["num_steps"]:
        raise BadInput(f"{data}: {chain.num_steps} steps; the tensors have {sizes['num_steps']}")
    for index, step in enumerate(chain.steps):
        if step.num_answers != (found := sizes[f"answers_{index}"]):
            raise BadInput(f"{data}, step {step.name!r}: {step.num_answers} options; the tensors have {found} answers")


def _write(
    workdir: pathlib.Path, converted: Params, settings: Settings, chain: Chain, *, source: pathlib.Path
) -> list[str]:
    if not settings.image_encoder.is_frozen or settings.image_encoder.name == "imported":
        raise BadInput(
            f"config.image_encoder.name: {settings.image_encoder.name!r}; expected 'pretrained': the authors' networks "
            "read the features of a frozen encoder"
        )
    encoder = load_frozen_encoder(settings)
    text = encode_prompts(settings, Terminal(), chain)
    networks = make_networks(settings, chain, None)
    batch = {"image_features": jnp.zeros((1, encoder.width))}
    fresh = jax.device_get(
        init_params(networks, key=jax.random.key(settings.seed), batch=batch, text_features=jnp.asarray(text))
    )
    missing = [ours for ours in NETWORKS.values() if ours not in converted]
    params = {name: converted.get(name, fresh[name]) for name in fresh}
    write_settings(workdir / "settings.json", settings)
    trained_on = f"data of its authors (converted from {source.name})"
    write_reading(workdir, chain, text, encoder_digest=encoder.digest, trained_on=trained_on)
    save(workdir / CONVERTED_FILE, {"source": source.name, "sha256": digest_file(source)[1], "fresh": missing})
    state = TrainState(np.int32(0), params, {}, np.asarray(jax.random.key_data(jax.random.key(settings.seed))))
    checkpoints = Checkpoints(workdir / "checkpoints")
    checkpoints.save(state, {"batches": {}, "metrics": {}, "seconds": 0.0, "data": ""}, {})
    checkpoints.wait()
    checkpoints.close()
    return missing


# Files of named tensors: .safetensors and, with torch installed, .pt and .pth.


TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def read_tensors(path: pathlib.Path) -> dict[str, Any]:
    """Read tensors by name; names of nested mappings are joined with '/'."""
    _check_suffix(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.suffix == ".safetensors":
        return dict(weights.read_tensors(path))
    content = weights.load_torch(path)
    if not isinstance(content, Mapping):
        raise BadInput(f"{path} holds a {type(content).__name__}; expected a state_dict or a dict of them")
    return {name: weights.to_numpy(leaf) for name, leaf in flatten(content).items()}


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write named tensors atomically."""
    with writing_whole(path) as file:
        if path.suffix in TORCH_SUFFIXES:
            _write_torch(path, file, tensors)
        else:
            save_safetensors(file.name, tensors)  # by name: a file object would need twice the memory


def check_destination(path: pathlib.Path, *, overwrite: bool) -> None:
    """Check a destination of `write_tensors`, before long work."""
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


if __name__ == "__main__":
    run_tool(main)
