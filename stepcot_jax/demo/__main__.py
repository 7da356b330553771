"""Serve a page that reads a dropped radiograph step by step, with a map and a correctable answer for each step.

    python -m stepcot_jax.demo --checkpoint=WORKDIR [--model teacher] [--host 127.0.0.1] [--port 7860]

It listens on this machine only, unless `--host` says otherwise, sends nothing to other hosts and keeps nothing: an
upload is deleted as soon as it is read. Needs the extra `demo`. For research; not a medical device.
"""

import argparse
import pathlib
import sys

from stepcot_jax.host.errors import BadInput, run_tool

_LOCAL = ("127.0.0.1", "localhost", "::1")


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until it is interrupted."""
    options = _parse(arguments)
    if not 0 <= options.port <= 65535:
        raise BadInput(f"--port must be 0 (any free port) to 65535; got {options.port}")
    # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
    from stepcot_jax.demo.server import import_gradio, serve
    from stepcot_jax.explain.saliency import Explainer
    from stepcot_jax.predict.trained_model import load_trained

    gradio = import_gradio()
    explainer = Explainer(load_trained(options.checkpoint, names=(options.model,)), model=options.model)
    if options.host not in _LOCAL:
        print(f"note: other machines can reach this page on {options.host}, without a password", file=sys.stderr)
    serve(explainer, gradio, host=options.host, port=options.port)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.demo", description="Serve a page that reads radiographs step by step."
    )
    parser.add_argument("--checkpoint", metavar="WORKDIR", type=pathlib.Path, required=True, help="of a trained run")
    parser.add_argument(
        "--model", choices=("teacher", "student"), default="teacher", help="network that reads (default: teacher)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=int, default=7860, help="port to listen on; 0 picks a free one (default: 7860)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_tool(main)
