"""Folders on object stores, gs://BUCKET/FOLDER and s3://BUCKET/FOLDER, through fsspec.

A store has no appends, renames or locks: an object is written whole or not at all.
"""

import contextlib
import dataclasses
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stepcot_jax.host.errors import BadInput, describe_disk, is_machine_fault
from stepcot_jax.host.text import install_extra, one_line, shorten

EXTRAS = {"gs": "gcs", "s3": "s3"}  # Schemes of stores -> the optional dependencies that read and write them

_FORM = "gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
_ADDRESS = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<folder>\w[\w.-]*(?:/[^/\\\s?#*\[\]{}]+)+)/?")
_TAGS = ("generation", "ETag", "etag", "md5Hash", "created", "mtime")
_NUM_THREADS = 8
_QUIET_SECONDS = 20.0  # before a wait is named


class StoreError(BadInput):
    """A store cannot be read or written; the message names the address and the cause."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """An object of a store; its tag changes when the content does."""

    size: int
    tag: str  # changes when the content does


class StoreFolder:
    """A folder on an object store."""

    def __init__(self, address: str) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or match["scheme"] not in EXTRAS or {".", ".."} & set(match["folder"].split("/")):
            raise BadInput(f"{shorten(address)}: not the address of a folder on a store; expected {_FORM}")
        self.address = address.rstrip("/")
        self._root = match["folder"]
        try:
            import fsspec  # takes a second with its stores, which most runs do not use

            # Others write here too: a listing is never taken from memory.
            self._files: Any = fsspec.filesystem(match["scheme"], use_listings_cache=False)
        except ImportError:
            extra = EXTRAS[match["scheme"]]
            raise BadInput(f"{self.address}: the extra {extra} is required ({install_extra(extra)})") from None
        except Exception as error:  # credentials that cannot be read
            raise StoreError(f"{self.address}: the store cannot be opened ({_describe(error)})") from None

    def list(self) -> dict[str, Stored]:
        """Return the objects by their names below the folder."""
        with self._explain("listed"):
            self._files.invalidate_cache()
            by_path = self._files.find(self._root, detail=True)
        objects = {}
        for path, facts in by_path.items():
            name = path.lstrip("/").removeprefix(self._root).lstrip("/")
            if not name or name.endswith("/"):  # a marker of a folder, which consoles make
                continue
            if "\\" in name or {"", ".", ".."} & set(name.split("/")):
                raise StoreError(f"{self.address}: {shorten(name)!r} is not the name of a file")
            objects[name] = _describe_object(facts)
        return objects

    def look_up(self, name: str) -> Stored | None:
        """Return the size and tag of an object; None if there is no such object."""
        with self._explain("read"):
            try:
                facts = self._files.info(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
        return None if facts.get("type") == "directory" else _describe_object(facts)

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None if there is none."""
        with self._explain("read"):
            try:
                content: bytes = self._files.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return content

    def write(self, name: str, content: bytes) -> None:
        """Write an object; it replaces one of the same name."""
        with self._explain("written"):
            self._files.pipe_file(f"{self._root}/{name}", content)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; a missing one is no error."""

        def remove_one(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}")

        with self._explain("written"):
            _call_all(remove_one, names)

    def upload(self, files: Mapping[str, pathlib.Path]) -> None:
        """Write files as objects: name -> file."""
        with self._explain("written"):
            _call_all(lambda pair: self._files.put_file(str(pair[1]), f"{self._root}/{pair[0]}"), files.items())

    def download(self, files: Mapping[str, pathlib.Path]) -> None:
        """Copy objects to files, whose folders are made: name -> file."""

        def get_one(pair: tuple[str, pathlib.Path]) -> None:
            pair[1].parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(f"{self._root}/{pair[0]}", str(pair[1]))

        with self._explain("read"):
            _call_all(get_one, files.items())

    @contextlib.contextmanager
    def _explain(self, done: str) -> Iterator[None]:
        """Turn every error of the store into one line, and name a long wait."""
        timer = threading.Timer(_QUIET_SECONDS, self._name_wait, (done,))
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:  # botocore, aiohttp, google.auth and the system raise dozens of kinds
            if isinstance(error, OSError) and error.filename and is_machine_fault(error):  # of this machine's disk
                raise StoreError(f"{describe_disk(error, self.address)}; {self.address} is not {done}") from error
            raise StoreError(f"{self.address}: cannot be {done} ({_describe(error)})") from error
        finally:
            timer.cancel()

    def _name_wait(self, done: str) -> None:
        print(
            f"note: {self.address} is not {done} after {_QUIET_SECONDS:.0f} s; waiting for the store or a slow network",
            file=sys.stderr,
            flush=True,
        )


def _describe_object(facts: Mapping[str, Any]) -> Stored:
    return Stored(int(facts["size"]), next((str(facts[key]) for key in _TAGS if facts.get(key) is not None), ""))


def _call_all(call: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call a function for each item, on several threads; the first error ends it."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for _ in pool.map(call, items):
            pass


def _describe(error: BaseException) -> str:
    kind, text = type(error).__name__, one_line(error)
    return kind if text == kind else f"{kind}: {text}"
