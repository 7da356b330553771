"""Files that visitors of the demo upload: each in a separate folder, read once and deleted."""

import asyncio
import pathlib
import secrets
import shutil
import threading
import time
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

MAX_MEGABYTES = 64  # Largest upload: the largest detectors write about 50 MB without compression

SUFFIXES = [".png", ".jpg", ".jpeg", ".dcm", ".dicom"]  # Of files that the page offers to upload

_SECONDS_KEPT, _MOST_UNREAD = 120, 32


class Uploads:
    """The uploaded files that are not read yet: only paths that this server's upload route wrote are read."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._paths: dict[str, float] = {}  # when each was written
        self._lock = threading.Lock()

    def add(self, path: str) -> None:
        """Register a file that the upload route wrote."""
        if not pathlib.Path(path).resolve().is_relative_to(self.folder):
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
