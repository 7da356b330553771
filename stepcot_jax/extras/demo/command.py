"""Serve a page that reads a dropped radiograph step by step, with a map and a correctable answer for each step.

A run that trained a policy answers questions instead. For research; not a medical device.
"""

import argparse
import importlib
import os
import pathlib
import signal
import sys
import tempfile
import threading
from typing import Any

from stepcot_jax.host.download import PHANTOM, find_checkpoint
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.text import install_extra
from stepcot_jax.tools.options import OF_READER, add, add_network

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    page = "Serve a page that reads radiographs step by step."
    parser = argparse.ArgumentParser(prog="stepcot demo", description=page)
    add(parser, "--checkpoint WORKDIR", f"{OF_READER} (default)", PHANTOM)
    add_network(parser)
    add(parser, "--host HOST", "address to listen on (default: 127.0.0.1, this machine only)", "127.0.0.1")
    other = "another host name or address under which browsers reach the page; may be repeated"
    add(parser, "--allow-host NAME", other, [], action="append")
    add(parser, "--port", "port to listen on; 0 picks a free one (default: 7860)", 7860)
    options = parser.parse_args(arguments)
    if any("*" in name for name in options.allow_host):
        raise BadInput("--allow-host: '*' stands for nothing here; expected a host name or address")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until it is interrupted."""
    options = _parse(arguments)
    checkpoint = find_checkpoint(options.checkpoint)
    gradio = import_gradio()  # takes seconds, as does jax
    from stepcot_jax.reading.explain import Explainer
    from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
    from stepcot_jax.reading.trained_model import load_trained, read_default_model
    from stepcot_jax.run.stored import read_stored

    reader: Explainer | PolicyReader
    if read_stored(checkpoint).trains_policy:
        reader = load_reader(checkpoint)
    else:
        model = options.model or read_default_model(checkpoint)
        reader = Explainer(load_trained(checkpoint, names=(model,)), model=model)
    names = dict.fromkeys((options.host, *options.allow_host))
    if options.host not in _LOOPBACK:
        under = f"under these names: {', '.join(names)} (more by --allow-host=NAME)"
        print(f"note: other machines can reach this page, without a password, {under}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="stepcot-demo-") as uploads:
        os.environ |= {"GRADIO_TEMP_DIR": uploads, "no_proxy": "*"}  # Gradio asks its own server whether it is there
        serve(gradio, reader, options, [*_LOOPBACK, *names], pathlib.Path(uploads))
    return 0


def import_gradio() -> Any:
    """Import Gradio with its telemetry disabled."""
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        return importlib.import_module("gradio")
    except ImportError as error:
        raise BadInput(f"the demo needs Gradio: {install_extra('demo')} ({error})") from None


def serve(gradio: Any, reader: Any, options: Any, names: list[str], folder: pathlib.Path) -> None:
    """Serve the page under these names until a signal comes."""
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from stepcot_jax.extras.demo.guard import MAX_MEGABYTES, Guard, Uploads
    from stepcot_jax.extras.demo.page import make_blocks, warm_up

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    uploads = Uploads(folder / "uploads")
    blocks = make_blocks(gradio, uploads, reader)
    hosts = [f"[{name}]" if ":" in name else name for name in names]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts), Middleware(Guard, uploads=uploads)]
    try:
        blocks.launch(
            server_name=f"[{options.host}]" if ":" in options.host else options.host,
            server_port=options.port or None,
            app_kwargs={"middleware": guards, "docs_url": None, "redoc_url": None, "openapi_url": None},
            max_file_size=MAX_MEGABYTES * 10**6,
            theme=gradio.themes.Default(font="system-ui", font_mono="ui-monospace"),  # not Google's
            css=(pathlib.Path(__file__).parent / "demo.css").read_text(encoding="utf-8"),
            **dict.fromkeys(("share", "run_history", "ssr_mode", "pwa", "mcp_server", "enable_monitoring"), False),
            footer_links=[],
            prevent_thread_lock=True,
            quiet=True,
        )
    except (OSError, OverflowError):
        raise BadInput(
            f"--host, --port: cannot listen on {options.host!r} port {options.port}; expected an address of this "
            "machine and a free port (0 picks one)"
        ) from None
    try:
        print("compiling ...", file=sys.stderr, flush=True)
        warm_up(reader)
        print(f"http://{blocks.server_name}:{blocks.server_port} (Ctrl-C stops it)", flush=True)
        threading.Event().wait()
    finally:
        blocks.close(verbose=False)


if __name__ == "__main__":
    run_tool(main)
