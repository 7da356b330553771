"""Serve a page that reads a dropped radiograph step by step, with a map and a correctable answer for each step.

A run that trained a policy answers questions instead; `--policy=WORKDIR` adds a tab for one. The page listens on this
machine only, unless `--host` says otherwise, sends nothing to other hosts and keeps nothing: an upload is deleted as
soon as it is read. Needs the extra `demo`. For research; not a medical device.
"""

import argparse
import importlib
import os
import pathlib
import socket
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepcot_jax.extras.demo.guard import LOOPBACK, MAX_MEGABYTES, Guard, Uploads
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.text import install_extra

if TYPE_CHECKING:
    from stepcot_jax.extras.demo.examples import Example
    from stepcot_jax.reading.explain import Explainer
    from stepcot_jax.reading.policy_reader import PolicyReader

# Keeps browsers from asking other hosts for the fonts and scripts that Gradio's own page names.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_SECONDS_TO_FINISH = 2


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot demo", description="Serve a page that reads radiographs step by step."
    )
    parser.add_argument("--checkpoint", metavar="WORKDIR", required=True, help="of a trained run; or gs://")
    parser.add_argument("--policy", metavar="WORKDIR", help="of a policy's run, for a second tab; or gs://")
    parser.add_argument(
        "--model", choices=("teacher", "student"), default="teacher", help="network that reads (default: teacher)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="another host name or address under which browsers reach the page; may be repeated",
    )
    parser.add_argument(
        "--examples",
        metavar="FOLDER",
        help="offer its images to try, to everyone who reaches the page; or gs:// (default: phantoms for a run "
        "on phantoms)",
    )
    parser.add_argument("--port", type=int, default=7860, help="port to listen on; 0 picks a free one (default: 7860)")
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        raise BadInput(f"--port must be 0 (any free port) to 65535; got {options.port}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until it is interrupted."""
    options = _parse(arguments)
    from stepcot_jax.host.download import find_path

    if options.examples is not None:
        options.examples = find_path(options.examples, "--examples")
        if not options.examples.is_dir():
            raise BadInput(
                f"--examples: {options.examples} is not a folder; expected one with PNG, JPEG or DICOM files"
            )
    from stepcot_jax.extras.demo.examples import find_examples
    from stepcot_jax.reading.explain import Explainer
    from stepcot_jax.reading.policy_reader import load_reader
    from stepcot_jax.reading.trained_model import load_trained
    from stepcot_jax.run.stored import read_stored

    checkpoint = find_path(options.checkpoint, "--checkpoint")
    policy = None if options.policy is None else find_path(options.policy, "--policy")
    is_policy = policy is None and read_stored(checkpoint).trains_policy
    gradio = import_gradio()  # takes seconds, as does jax
    explainer = None
    if is_policy:
        policy = checkpoint
        if options.examples is not None:
            raise BadInput("--examples applies to a run that reads steps; this checkpoint is a policy's")
    else:
        explainer = Explainer(load_trained(checkpoint, names=(options.model,)), model=options.model)
    examples = () if explainer is None else find_examples(options.examples, explainer.trained)
    reader = None if policy is None else load_reader(policy)
    if options.host not in LOOPBACK:
        names = ", ".join(dict.fromkeys((options.host, *options.allow_host)))
        print(
            f"note: other machines can reach this page, without a password, under these names: {names} (more by "
            "--allow-host=NAME)",
            file=sys.stderr,
        )
    serve(
        explainer,
        gradio,
        reader=reader,
        examples=examples,
        host=options.host,
        port=options.port,
        allowed_hosts=options.allow_host,
    )
    return 0


def import_gradio() -> Any:
    """Import Gradio with its telemetry disabled."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        return importlib.import_module("gradio")
    except ImportError as error:
        raise BadInput(f"the demo needs Gradio: {install_extra('demo')} ({error})") from None


def serve(
    explainer: "Explainer | None",
    gradio: Any,
    *,
    reader: "PolicyReader | None" = None,
    examples: "tuple[Example, ...]" = (),
    host: str,
    port: int,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve the page until a signal comes; uploads go to a temporary folder, deleted when the server ends."""
    import uvicorn

    from stepcot_jax.extras.demo.page import make_blocks
    from stepcot_jax.extras.demo.sessions import warm_up

    with _listen(host, port) as listening, tempfile.TemporaryDirectory(prefix="stepcot-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        print("compiling ...", file=sys.stderr, flush=True)
        if explainer is not None:
            warm_up(explainer)
        if reader is not None:
            reader.warm_up()
        bound_host, bound_port = listening.getsockname()[:2]
        uploads = Uploads(pathlib.Path(folder) / "uploads")
        blocks = make_blocks(explainer, gradio, uploads=uploads, reader=reader, examples=examples)
        app = _make_app(blocks, gradio, uploads=uploads, host=bound_host, port=bound_port)
        guard = Guard(app, names=(host, bound_host, *allowed_hosts), uploads=uploads)
        config = uvicorn.Config(guard, log_level="warning", timeout_graceful_shutdown=_SECONDS_TO_FINISH)
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        print(f"http://{shown}:{bound_port} (Ctrl-C stops it)", flush=True)
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BadInput(f"--host: {host!r} is not an address of this machine ({error.strerror})") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen()  # so that the printed address accepts connections at once
    except OSError as error:
        listening.close()
        raise BadInput(
            f"--host, --port: cannot listen on {host!r} port {port} ({error.strerror}); expected an address of this "
            "machine and a free port (0 picks one)"
        ) from None
    return listening


def _make_app(blocks: Any, gradio: Any, *, uploads: Uploads, host: str, port: int) -> Any:
    import fastapi

    no_docs: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    app = fastapi.FastAPI(**no_docs)

    @app.middleware("http")
    async def add_headers(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        return response

    async def receive(request: Any) -> Any:
        return await uploads.receive(request)

    app.add_route("/gradio_api/upload", receive, methods=["POST"])  # in front of Gradio's own

    return gradio.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=host,
        server_port=port,
        app_kwargs=no_docs,
        footer_links=[],
        run_history=False,
        max_file_size=MAX_MEGABYTES * 10**6,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        show_error=False,
        theme=_make_theme(gradio),
        css=(pathlib.Path(__file__).parent / "demo.css").read_text(encoding="utf-8"),
    )


def _make_theme(gradio: Any) -> Any:
    """Return Gradio's default theme with the system's fonts, not Google's, and readable colours (WCAG AA)."""
    theme = gradio.themes.Default(font=("system-ui", "sans-serif"), font_mono=("ui-monospace", "monospace"))
    greys = ("block_info_text_color", "block_label_text_color", "block_title_text_color", "body_text_color_subdued")
    light = dict.fromkeys(greys, "*neutral_600")
    dark = dict.fromkeys(greys, "*neutral_300")
    button = "button_primary_background_fill"
    for colours in (light, dark):
        colours |= {button: "*primary_700", f"{button}_hover": "*primary_800"}
    return theme.set(**light, **{f"{name}_dark": colour for name, colour in dark.items()})


if __name__ == "__main__":
    run_tool(main)
