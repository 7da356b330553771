"""Export a trained model: StableHLO and safetensors, with a loader that does not need this package.

Of the run of a Qwen2.5-VL it writes a checkpoint folder for transformers.
"""

import argparse
import json
import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.extras import find_extra
from stepcot_jax.host.terminal import name_command
from stepcot_jax.tools.options import NETWORKS, add, local_path


def main(arguments: list[str] | None = None) -> int:
    """Export the networks that the command line names; print what was written, with --json as one JSON line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["push"]:
        return _find_hub().main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="stepcot export", description="Export a trained model, with a loader that does not need this package."
    )
    add(parser, "--checkpoint WORKDIR", "of a finished run; or gs://", required=True)
    add(parser, "--out DIR", "new or empty folder", type=local_path, required=True)
    add(
        parser, "--model NAME[,NAME]", "teacher, student, plain (default: all of the run, the best on validation first)"
    )
    add(parser, "--push-to-hub OWNER/NAME", "then upload the folder to the Hugging Face hub")
    add(parser, "--private", "--push-to-hub: a new repository is private")
    add(parser, "--license ID", "--push-to-hub: of the weights, for the card")
    add(parser, "--json", "print the report as one JSON line")
    flags = parser.parse_args(arguments)
    names = None if flags.model is None else tuple(dict.fromkeys(map(str.strip, flags.model.split(","))))
    unknown = [name for name in names or () if name not in NETWORKS]
    if unknown:
        raise BadInput(f"--model: {unknown[0]!r} is not one of {', '.join(NETWORKS)}")
    if flags.push_to_hub:
        _find_hub().check_account(flags.push_to_hub)  # before the work
    from stepcot_jax.host.download import find_checkpoint

    flags.checkpoint = find_checkpoint(flags.checkpoint)
    report = {**_export(flags, flags.out, names), "folder": str(flags.out)}
    if not flags.json:
        print(describe_report(report))
    if flags.push_to_hub:
        hub = _find_hub()
        address = hub.push_export(flags.out, flags.push_to_hub, private=flags.private, licence=flags.license)
        report["address"] = address
        if not flags.json:
            print(hub.describe_address(address, flags.out))
    if flags.json:
        print(json.dumps(report))
    return 0


def _export(flags: argparse.Namespace, out: pathlib.Path, names: tuple[str, ...] | None) -> dict[str, Any]:
    from stepcot_jax.export.folder import export_model
    from stepcot_jax.export.qwen_folder import export_qwen
    from stepcot_jax.run.stored import read_stored

    if read_stored(flags.checkpoint).trains_policy:
        if names is not None:
            raise BadInput(f"{flags.checkpoint} is of a policy, to which --model does not apply")
        return export_qwen(flags.checkpoint, out, say=_say)
    return export_model(flags.checkpoint, out, models=names, say=_say)


def _find_hub() -> Any:
    return find_extra("publisher", "hub", packages="hub")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def describe_report(report: Mapping[str, Any]) -> str:
    """Return a few lines that list what an export wrote."""
    lines = [f"{report['folder']}: {len(report['files'])} files, {sum(report['files'].values()) / 2**20:.1f} MiB"]
    for name, facts in report["models"].items() if "models" in report else [("policy", report["policy"])]:
        shown = (f"{value:,}" if isinstance(value, int) else str(value) for value in facts.values())
        pairs = (f"{key.replace('_', ' ')} {value}" for key, value in zip(facts, shown, strict=True))
        lines.append(f"{name}: {', '.join(pairs)}")
    folder = shlex.quote(report["folder"])
    if "load.py" in report["files"]:
        lines.append(
            f"next: {name_command('python')} {folder}/load.py {folder}  (checks that a machine computes the same)"
        )
    else:
        lines.append(f"next: transformers' Qwen2_5_VLForConditionalGeneration.from_pretrained reads {folder}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_tool(main)
