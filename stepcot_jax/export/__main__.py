"""Export a trained model: StableHLO and safetensors, with a loader that needs only jax and numpy.

    python -m stepcot_jax.export --checkpoint=WORKDIR --out=DIR [--model=student,teacher] [--torch-names]

DIR then holds the programs for any number of images on CPU, CUDA and TPU, the parameters, questions and answers, the
preprocessing, a model card, and SHA256SUMS, with which the loader detects changed files. Of a policy's run it holds the
programs of prefill and of one decoded token, and the loader generates replies.
"""

import argparse
import json
import pathlib
import sys

from stepcot_jax.host.errors import BadInput, run_tool

MODELS = ("student", "teacher")


def main(arguments: list[str] | None = None) -> int:
    """Export the networks that the command line names; prints one JSON line."""
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
        print(json.dumps(export_policy(flags.checkpoint, flags.out, say=say)))
        return 0
    report = export_model(flags.checkpoint, flags.out, models=names, torch_names=flags.torch_names, say=say)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_tool(main)
