"""Export a trained model: StableHLO and safetensors, with a loader that needs only jax and numpy.

    python -m stepcot_jax.export --checkpoint=WORKDIR --out=DIR [--model=student,teacher] [--torch-names]
    python -m stepcot_jax.export --checkpoint=WORKDIR --out=DIR --format=onnx [--model=student,teacher]
    python -m stepcot_jax.export --checkpoint=WORKDIR --out=DIR --push-to-hub=OWNER/NAME [--private]
    python -m stepcot_jax.export push DIR OWNER/NAME [--private]

DIR then holds the programs for any number of images on CPU, CUDA and TPU, the parameters, questions and answers, the
preprocessing, a model card, and SHA256SUMS, with which the loader detects changed files. Of a policy's run it holds the
programs of prefill and of one decoded token, and the loader generates replies.
"""

import argparse
import json
import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from stepcot_jax.host.addresses import is_address, output_place
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.hub import SCHEME, check_account, upload_folder

MODELS = ("student", "teacher")
_LICENCE = "licence of the weights in the card, such as cc-by-nc-4.0 (default: that of the repository's card)"


def main(arguments: list[str] | None = None) -> int:
    """Export the networks that the command line names; prints what was written, with --json as one JSON line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["renew"] or "--renew" in arguments:
        raise BadInput(
            "`export renew` is gone; export again from the run: python -m stepcot_jax.export --checkpoint=RUN --out=DIR"
        )
    if arguments and arguments[0] in _COMMANDS:
        return _COMMANDS[arguments[0]](arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.export",
        description="Export a trained model, with a loader that needs only jax and numpy.",
    )
    parser.add_argument("--checkpoint", required=True, metavar="WORKDIR", help="of a finished run; or gs://, s3://")
    parser.add_argument(
        "--out", type=output_place, required=True, metavar="DIR", help="new or empty folder; or gs://, s3://"
    )
    parser.add_argument(
        "--model", metavar="NAME[,NAME]", help="student, teacher or both (default: all networks of the run)"
    )
    parser.add_argument(
        "--torch-names", action="store_true", help="also write the parameters under the authors' PyTorch names"
    )
    parser.add_argument("--format", choices=("stablehlo", "onnx"), default="stablehlo", help="default: %(default)s")
    parser.add_argument("--push-to-hub", metavar="OWNER/NAME", help="then upload the folder to the Hugging Face hub")
    parser.add_argument("--private", action="store_true", help="--push-to-hub: a new repository is private")
    parser.add_argument("--license", metavar="ID", help=f"--push-to-hub: {_LICENCE}")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON line")
    flags = parser.parse_args(arguments)
    names = None if flags.model is None else tuple(dict.fromkeys(map(str.strip, flags.model.split(","))))
    unknown = [name for name in names or () if name not in MODELS]
    if unknown:
        raise BadInput(f"--model: {unknown[0]!r} is not one of {', '.join(MODELS)}")
    if flags.push_to_hub:
        check_account(flags.push_to_hub)  # before the work
    # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
    from stepcot_jax.host.outputs import writing_folder
    from stepcot_jax.host.store_cache import find_workdir

    flags.checkpoint = find_workdir(flags.checkpoint, "--checkpoint")
    with writing_folder(flags.out, is_new=True) as out:
        report = {**_export(flags, out.path, names), "folder": out.name}
    if not flags.json:
        print(describe_report(report))
    if flags.push_to_hub:
        folder = find_workdir(out.name, "--out")
        address = push_export(folder, flags.push_to_hub, private=flags.private, licence=flags.license, name=out.name)
        report["address"] = address
        if not flags.json:
            print(describe_address(address, folder))
    if flags.json:
        print(json.dumps(report))
    return 0


def _export(flags: argparse.Namespace, out: pathlib.Path, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Write the export that the flags name; return its report."""
    from stepcot_jax.export.folder import export_model
    from stepcot_jax.export.policy_folder import export_policy
    from stepcot_jax.settings.run_settings import is_policy_run

    if is_policy_run(flags.checkpoint):
        if names is not None or flags.torch_names or flags.format != "stablehlo":
            raise BadInput(
                f"{flags.checkpoint} is of a policy, to which --model, --torch-names and --format=onnx do not apply"
            )
        return export_policy(flags.checkpoint, out, say=_say)
    if flags.format == "onnx":
        if flags.torch_names:
            raise BadInput("--torch-names applies to --format=stablehlo")
        from stepcot_jax.export.onnx_folder import export_onnx

        return export_onnx(flags.checkpoint, out, models=names, say=_say)
    return export_model(flags.checkpoint, out, models=names, torch_names=flags.torch_names, say=_say)


def push_export(
    folder: pathlib.Path, repository: str, *, private: bool, licence: str | None = None, name: str = ""
) -> str:
    """Upload an export to the Hugging Face hub and return its address.

    Args:
      licence: written to the card; None keeps the licence of the card that the repository has.
    """
    from stepcot_jax import __version__
    from stepcot_jax.export.licence import with_licence
    from stepcot_jax.training.exported_weights import SUMS_FILE, list_files, require_whole

    if not (folder / SUMS_FILE).is_file():
        raise BadInput(f"{folder}: not an export (no {SUMS_FILE})")
    names = list_files(folder)
    require_whole(folder, names)
    if strays := sorted({path.name for path in folder.iterdir()} - {*names, SUMS_FILE}):
        raise BadInput(f"{folder / strays[0]}: not a file of the export; expected only files that {SUMS_FILE} names")
    try:
        with with_licence(folder, repository, licence) as whole:
            return upload_folder(whole, repository, private=private, message=f"Export of stepcot-jax {__version__}")
    except BadInput as error:
        name = name or str(folder)
        again = f"python -m stepcot_jax.export push {shlex.quote(name)} {repository}"
        raise BadInput(f"{error}; the export is complete in {name}, and {again} uploads it") from None


def describe_address(address: str, folder: pathlib.Path) -> str:
    """Return where an export was uploaded and how to use it: `sc.load` reads all kinds but ONNX and checkpoints."""
    from stepcot_jax.training.exported_weights import MANIFEST_FILE

    repository, _, revision = address.removeprefix(SCHEME).partition("@")
    download = f"hf download {repository} --revision={revision} --local-dir=DIR"
    return f"uploaded: {address}\nnext: " + (
        f'sc.load("{address}")' if (folder / MANIFEST_FILE).is_file() else download
    )


def _push(arguments: list[str]) -> int:
    """Upload an export."""
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.export push", description="Upload an export to the Hugging Face hub."
    )
    parser.add_argument("folder", metavar="DIR", help="of an export; or gs://, s3://")
    parser.add_argument("repository", metavar="OWNER/NAME", help="created if missing")
    parser.add_argument("--private", action="store_true", help="a new repository is private")
    parser.add_argument("--license", metavar="ID", help=_LICENCE)
    parser.add_argument("--json", action="store_true", help="print the address as one JSON line")
    flags = parser.parse_args(arguments)
    check_account(flags.repository)
    from stepcot_jax.host.store_cache import find_workdir

    folder = find_workdir(flags.folder, "DIR")
    address = push_export(folder, flags.repository, private=flags.private, licence=flags.license, name=flags.folder)
    print(json.dumps({"address": address}) if flags.json else describe_address(address, folder))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def describe_report(report: Mapping[str, Any]) -> str:
    """Return in a few lines what an export wrote."""
    lines = [f"{report['folder']}: {len(report['files'])} files, {sum(report['files'].values()) / 2**20:.1f} MiB"]
    for name, facts in report["models"].items() if "models" in report else [("policy", report["policy"])]:
        shown = (f"{value:,}" if isinstance(value, int) else str(value) for value in facts.values())
        pairs = (f"{key.replace('_', ' ')} {value}" for key, value in zip(facts, shown, strict=True))
        lines.append(f"{name}: {', '.join(pairs)}")
    folder = shlex.quote(report["folder"])
    if is_address(folder):
        lines.append(f"next: python -m stepcot_jax.data fetch {folder} DIR")
        folder = "DIR"
    if "load.py" in report["files"]:
        lines.append(f"next: python {folder}/load.py {folder}  (checks that a machine computes the same)")
    else:
        lines.append(f"next: transformers' Qwen2_5_VLForConditionalGeneration.from_pretrained reads {folder}")
    return "\n".join(lines)


_COMMANDS = {"push": _push}


if __name__ == "__main__":
    run_tool(main)
