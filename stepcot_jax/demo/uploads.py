"""Files that visitors of the demo upload: each in a folder of its own, read once and deleted."""

import pathlib
import secrets
import shutil
import threading
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

MAX_MEGABYTES = 64
"""Largest upload: the largest detectors write about 50 MB without compression."""

SUFFIXES = [".png", ".jpg", ".jpeg", ".dcm", ".dicom"]
"""Of files that the page offers to upload."""


class Uploads:
    """The uploaded files that are not read yet.

    A path in a request is a visitor's words: only one that this server's upload route wrote is read.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._paths: set[str] = set()
        self._lock = threading.Lock()

    def add(self, path: str) -> None:
        """Take note of a file that the upload route wrote."""
        if not pathlib.Path(path).resolve().is_relative_to(self.folder):
            raise ValueError(f"{path} does not lie below {self.folder}")
        with self._lock:
            self._paths.add(path)

    def __contains__(self, path: object) -> bool:
        """Return whether a path is that of an upload which was not read yet."""
        return path in self._paths

    def take(self, path: str) -> bytes:
        """Return the content of an uploaded file and delete it, even if it cannot be read."""
        with self._lock:
            if path not in self._paths:
                raise BadInput("the file is not an upload of this page, or was read already; upload it once more")
            self._paths.remove(path)
        try:
            with open_untrusted(path, accepted="an image", max_bytes=MAX_MEGABYTES * 10**6, follow=False) as file:
                return file.read()
        except OSError as error:
            raise BadInput(f"the upload cannot be read ({error.strerror}); expected an image file") from None
        finally:
            shutil.rmtree(pathlib.Path(path).parent, ignore_errors=True)

    async def receive(self, request: Any, blocks: Any) -> Any:
        """Store the files of a request of Gradio's page and return the response: their paths.

        Gradio's own route names folders by content, so that two visitors with the same file would share one copy.
        """
        from gradio.route_utils import MultiPartException, upload_fn
        from starlette.responses import JSONResponse, PlainTextResponse

        try:
            paths, _, _ = await upload_fn(
                request, str(self.folder / secrets.token_hex(16)), MAX_MEGABYTES * 10**6, upload_id=None
            )
        except MultiPartException as error:
            return PlainTextResponse(error.message, status_code=413)
        for path in map(str, paths):
            self.add(path)
        blocks.upload_file_set.update(paths)  # Gradio deletes those that are never read
        return JSONResponse([str(path) for path in paths])
