"""Export a trained model: StableHLO and safetensors, with a loader that needs only jax and numpy.

    python -m stepcot_jax.export --checkpoint=WORKDIR --out=DIR [--model=student,teacher] [--torch-names]

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

from stepcot_jax.host.errors import BadInput, run_tool

MODELS = ("student", "teacher")


def main(arguments: list[str] | None = None) -> int:
    """Export the networks that the command line names; prints what was written, with --json as one JSON line."""
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.export",
        description="Export a trained model, with a loader that needs only jax and numpy.",
    )
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True, metavar="WORKDIR", help="of a finished run")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="new or empty folder")
    parser.add_argument(
        "--model", metavar="NAME[,NAME]", help="student, teacher or both (default: all networks of the run)"
    )
    parser.add_argument(
        "--torch-names", action="store_true", help="also write the parameters under the authors' PyTorch names"
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON line")
    flags = parser.parse_args(arguments)
    names = None if flags.model is None else tuple(dict.fromkeys(map(str.strip, flags.model.split(","))))
    unknown = [name for name in names or () if name not in MODELS]
    if unknown:
        raise BadInput(f"--model: {unknown[0]!r} is not one of {', '.join(MODELS)}")
    # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
    from stepcot_jax.export.folder import export_model
    from stepcot_jax.export.policy_folder import export_policy
    from stepcot_jax.predict.trained_policy import is_policy_run

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if is_policy_run(flags.checkpoint):
        if names is not None or flags.torch_names:
            raise BadInput(f"{flags.checkpoint} is of a policy, to which --model and --torch-names do not apply")
        report = export_policy(flags.checkpoint, flags.out, say=say)
    else:
        report = export_model(flags.checkpoint, flags.out, models=names, torch_names=flags.torch_names, say=say)
    print(json.dumps(report) if flags.json else describe_report(report))
    return 0


def describe_report(report: Mapping[str, Any]) -> str:
    """Return in a few lines what an export wrote."""
    lines = [f"{report['folder']}: {len(report['files'])} files, {sum(report['files'].values()) / 2**20:.1f} MiB"]
    for name, facts in report["models"].items() if "models" in report else [("policy", report["policy"])]:
        shown = (f"{value:,}" if isinstance(value, int) else str(value) for value in facts.values())
        pairs = (f"{key.replace('_', ' ')} {value}" for key, value in zip(facts, shown, strict=True))
        lines.append(f"{name}: {', '.join(pairs)}")
    folder = shlex.quote(report["folder"])
    lines.append(f"next: python {folder}/load.py {folder}  (checks that a machine computes the same)")
    return "\n".join(lines)


if __name__ == "__main__":
    run_tool(main)
