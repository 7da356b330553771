"""What the demo's server answers: the page's own requests, and the files that were uploaded to it.

Gradio checks none of this: it runs a function for another site's page, and keeps equal uploads in one place.
"""

import asyncio
import json
import pathlib
import re
import secrets
import shutil
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

MAX_MEGABYTES = 64  # largest upload: the largest detectors write about 50 MB without compression

_SECONDS_KEPT, _MOST_UNREAD = 120, 32
_MOST_JSON_BYTES = 2**16  # the page sends hundreds; Gradio walks a body in the thread that serves everybody
_API = "/gradio_api"
_UPLOAD = f"{_API}/upload"
_PARTS = re.compile(
    r"(GET|HEAD) (/|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static|svelte)/.*|"
    rf"{_API}/(info/?|app_id/?|theme\.css|startup-events|queue/(data|status)|heartbeat/[^/]+|upload_progress))|"
    rf"POST {_API}/(upload|queue/join|reset/?|cancel)"
)
_HEADERS = {
    # Keeps browsers from asking other hosts for the fonts and scripts that Gradio's own page names.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src "
    "'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' "
    "blob:; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Uploads:
    """The uploaded files that are not read yet, each in a folder of its own below `folder`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self._paths = folder, dict[str, bool]()

    def add(self, path: str) -> None:
        """Register a file of the upload route; of too many unread ones the oldest is deleted."""
        self._paths[path] = True
        for oldest in list(self._paths)[:-_MOST_UNREAD]:
            self.delete(oldest)

    def __contains__(self, path: object) -> bool:
        """Return whether a path is that of an upload which was not read yet."""
        return isinstance(path, str) and path in self._paths

    def delete(self, path: str) -> None:
        """Delete an upload with its folder, unless it was read."""
        if self._paths.pop(path, False):
            self._remove(path)

    def _remove(self, path: str) -> None:
        shutil.rmtree(self.folder / pathlib.Path(path).relative_to(self.folder).parts[0], ignore_errors=True)

    def read_once(self, path: str) -> bytes:
        """Return the content of an uploaded file and delete it, even if it cannot be read."""
        if not self._paths.pop(path, False):
            raise BadInput("the file is not an upload of this page, or was read already; upload it once more")
        try:
            with open_untrusted(path, accepted="an image", max_bytes=MAX_MEGABYTES * 10**6, follow=False) as file:
                return file.read()
        except OSError as error:
            raise BadInput(f"the upload cannot be read ({error.strerror}); expected an image file") from None
        finally:
            self._remove(path)

    async def receive(self, request: Request) -> Response:
        """Store the file of a request for two minutes; return its path in a list, as Gradio does."""
        from gradio.route_utils import MultiPartException, upload_fn

        folder, paths = self.folder / secrets.token_hex(16), []
        try:
            paths, _, _ = await upload_fn(request, str(folder), MAX_MEGABYTES * 10**6, upload_id=None)
            if len(paths) != 1:
                return PlainTextResponse("expected one file", status_code=400)
        except (HTTPException, TypeError):  # Gradio's, for another body, and for a part without a file name
            return PlainTextResponse("expected a file with a name", status_code=400)
        except (MultiPartException, ClientDisconnect):  # the guard ends what is too large as a disconnection
            return PlainTextResponse(f"cut off, or more than {MAX_MEGABYTES} MB", status_code=413)
        finally:
            if len(paths) != 1:
                shutil.rmtree(folder, ignore_errors=True)
        self.add(str(paths[0]))
        asyncio.get_running_loop().call_later(_SECONDS_KEPT, self.delete, str(paths[0]))
        return JSONResponse([str(paths[0])])


class Guard:
    """An ASGI layer that passes on requests of the page's own parts, from the page itself, about uploads alone."""

    def __init__(self, app: Any, *, uploads: Uploads) -> None:
        self._app, self._uploads = app, uploads

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        """Answer a request, or refuse it with one sentence."""
        if scope["type"] != "http":  # the page opens no web socket, and Gradio has none
            return await self._app(scope, receive, send)
        left, bodies = _MOST_JSON_BYTES + MAX_MEGABYTES * 10**6 * (scope["path"] == _UPLOAD), list[bytes]()

        async def receive_some() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            return message if left >= 0 else {"type": "http.disconnect"}

        async def receive_again() -> Any:
            return {"type": "http.request", "body": bodies.pop()} if bodies else await receive()

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope, receive_some)
        answer = self._refuse(request)
        try:
            if answer is None and scope["path"] == _UPLOAD:
                answer = await self._uploads.receive(request)
            elif answer is None and request.method == "POST":
                bodies.append(await request.body())
                answer = self._refuse_files(bodies[0])
        except ClientDisconnect:
            answer = PlainTextResponse(f"cut off, or more than {_MOST_JSON_BYTES} bytes", status_code=413)
        return await (answer or self._app)(scope, receive_again, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        origin, path = request.headers.get("origin"), request.scope["path"]
        if origin is not None and origin.partition("://")[2].lower() != request.headers["host"].lower():
            return PlainTextResponse("requests of another site's page are not answered", status_code=403)
        if not _PARTS.fullmatch(f"{request.method} {path}") or "deep_link" in request.query_params:
            return PlainTextResponse("not a part of this page", status_code=404)
        # A browser would ask again and again for what is not measured.
        return Response(status_code=204) if path == f"{_API}/upload_progress" else None

    def _refuse_files(self, body: bytes) -> Response | None:
        paths = list[Any]()

        def note_path(part: dict[str, Any]) -> dict[str, Any]:  # Gradio refers to files by objects with a path
            paths.append(part.get("path"))
            return part

        try:
            json.loads(body or b"null", object_hook=note_path)
        except (ValueError, RecursionError):
            return PlainTextResponse("expected JSON", status_code=400)
        is_known = all(path is None or path in self._uploads for path in paths)
        return None if is_known else PlainTextResponse("only unread uploads of this page may be named", status_code=403)
