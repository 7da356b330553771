"""What visitors of the demo may ask and upload: requests under its own names, from its own page, for the page's parts.

Gradio checks none of this: another site's page could ask for any picture and, by DNS rebinding, read the answer. Each
upload has a separate folder, and is read once and deleted.
"""

import asyncio
import json
import pathlib
import re
import secrets
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted, resolve

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # Names of this machine for itself

MAX_MEGABYTES = 64  # Largest upload: the largest detectors write about 50 MB without compression

SUFFIXES = [".png", ".jpg", ".jpeg", ".dcm", ".dicom"]  # Of files that the page offers to upload

_SECONDS_KEPT, _MOST_UNREAD = 120, 32

_API = "/gradio_api"
_READ = re.compile(
    rf"/|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static|svelte)/.*|{_API}/(info/?|"
    r"app_id/?|theme\.css|startup-events|queue/(data|status)|heartbeat/[^/]+|upload_progress)"
)
_WRITTEN = re.compile(rf"{_API}/(upload|queue/join|reset/?|cancel)")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?", re.IGNORECASE)
_MOST_JSON_BYTES = 2**16  # the page sends hundreds; Gradio walks a body in the thread that serves everybody
_MOST_BYTES = MAX_MEGABYTES * 10**6 + _MOST_JSON_BYTES

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]


class Uploads:
    """The uploaded files that are not read yet: only paths that this server's upload route wrote are read."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = resolve(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._paths: dict[str, float] = {}  # when each was written
        self._lock = threading.Lock()

    def add(self, path: str) -> None:
        """Register a file that the upload route wrote."""
        if not resolve(path).is_relative_to(self.folder):
            raise ValueError(f"{path} does not lie below {self.folder}")
        with self._lock:
            self._paths[path] = time.monotonic()

    def __contains__(self, path: object) -> bool:
        """Return whether a path is that of an upload which was not read yet."""
        return path in self._paths

    def read_once(self, path: str) -> bytes:
        """Return the content of an uploaded file and delete it, even if it cannot be read."""
        with self._lock:
            if path not in self._paths:
                raise BadInput("the file is not an upload of this page, or was read already; upload it once more")
            del self._paths[path]
        try:
            with open_untrusted(path, accepted="an image", max_bytes=MAX_MEGABYTES * 10**6, follow=False) as file:
                return file.read()
        except OSError as error:
            raise BadInput(f"the upload cannot be read ({error.strerror}); expected an image file") from None
        finally:
            self._delete(path)

    def sweep(self, *, most: int = _MOST_UNREAD) -> None:
        """Delete uploads that were not read within two minutes, and the oldest beyond `most`."""
        with self._lock:
            kept = [path for path, when in self._paths.items() if time.monotonic() - when < _SECONDS_KEPT][-most:]
            dropped = self._paths.keys() - set(kept)
            self._paths = {path: self._paths[path] for path in kept}
        for path in dropped:
            self._delete(path)

    def _delete(self, path: str) -> None:
        request = pathlib.Path(path).relative_to(self.folder).parts[0]
        shutil.rmtree(self.folder / request, ignore_errors=True)

    async def receive(self, request: Any) -> Any:
        """Store a request's file in a folder of its own (Gradio shares them by content); return its path in a list."""
        from gradio.route_utils import MultiPartException, upload_fn
        from starlette.requests import ClientDisconnect
        from starlette.responses import JSONResponse, PlainTextResponse

        self.sweep(most=_MOST_UNREAD - 1)
        folder, paths = self.folder / secrets.token_hex(16), []
        try:
            paths, _, _ = await upload_fn(request, str(folder), MAX_MEGABYTES * 10**6, upload_id=None)
            if len(paths) != 1:
                return PlainTextResponse("expected one file", status_code=400)
        except TypeError:  # Gradio's, for a part without a file name
            return PlainTextResponse("expected a file with a name", status_code=400)
        except (MultiPartException, ClientDisconnect):  # the guard ends what is too large as a disconnection
            return PlainTextResponse(f"cut off, or more than {MAX_MEGABYTES} MB", status_code=413)
        finally:
            if len(paths) != 1:
                shutil.rmtree(folder, ignore_errors=True)
        self.add(str(paths[0]))
        asyncio.get_running_loop().call_later(_SECONDS_KEPT, self.sweep)
        return JSONResponse([str(paths[0])])


class Guard:
    """An ASGI application that passes the page's own requests on, under `names` or this machine's."""

    def __init__(
        self, app: Callable[[_Scope, _Receive, _Send], Awaitable[None]], *, names: Iterable[str], uploads: Uploads
    ) -> None:
        self._app, self._uploads = app, uploads
        self._names = {name.strip("[]").lower() for name in (*LOOPBACK, *names)}

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request, or refuse it with one sentence."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":  # the page opens no web socket
            return await send({"type": "websocket.close", "code": 1008})
        refused = self._check(scope)
        if refused is not None:
            return await _answer(send, *refused)
        receive = _limit(receive, _MOST_BYTES)
        if scope["method"] == "POST" and scope["path"] != f"{_API}/upload":
            body = await _read(receive)
            if body is None:
                return await _answer(send, 413, f"more than {_MOST_JSON_BYTES} bytes")
            refused = self._check_body(body)
            if refused is not None:
                return await _answer(send, *refused)
            receive = _repeat(body, receive)
        return await self._app(scope, receive, send)

    def _check(self, scope: _Scope) -> tuple[int, str] | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or (match[1] or match[2]).lower() not in self._names:
            return 403, "this server does not answer under the name in the Host header; start it with --allow-host=NAME"
        if any(origin.partition("://")[2].lower() != hosts[0].lower() for origin in headers.get("origin", [])):
            return 403, "requests of another site's page are not answered"
        known = {"GET": _READ, "HEAD": _READ, "POST": _WRITTEN}.get(scope["method"])
        if known is None or not known.fullmatch(scope["path"]) or b"deep_link" in scope.get("query_string", b""):
            return 404, "not a part of this page"
        if scope["path"] == f"{_API}/upload_progress":
            return 204, ""  # a browser would ask again and again for what is not measured
        return None

    def _check_body(self, body: bytes) -> tuple[int, str] | None:
        try:
            paths = list(_find_paths(json.loads(body or b"null")))
        except (ValueError, RecursionError):
            return 400, "expected JSON"
        if any(path not in self._uploads for path in paths):
            return 403, "a request may name only files that were uploaded to this page and not read yet"
        return None


def _find_paths(body: Any) -> Iterable[Any]:
    """Yield every value under the name "path", by which Gradio refers to files."""
    left = [body]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if part.get("path") is not None:
                yield part["path"] if isinstance(part["path"], str) else ""
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)


def _limit(receive: _Receive, most: int) -> _Receive:
    """Return a source of messages that ends with a disconnection after so many bytes."""
    left = most

    async def receive_some() -> _Scope:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return receive_some


async def _read(receive: _Receive) -> bytes | None:
    body = b""
    while len(body) <= _MOST_JSON_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body if len(body) <= _MOST_JSON_BYTES else None
    return None


def _repeat(body: bytes, receive: _Receive) -> _Receive:
    """Return a source of messages that begins with a body which was read already."""
    first: list[_Scope] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> _Scope:
        return first.pop() if first else await receive()

    return receive_again


async def _answer(send: _Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
