"""A folder on an object store, through fsspec: an object is written whole or not at all, without appends or locks."""

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stepcot_jax.host.errors import BadInput, describe_disk, is_machine_fault
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.text import install_extra, one_line, shorten

_ADDRESS = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<folder>\w[\w.-]*(?:/[^/\\\s?#*\[\]{}]+)+)/?")
_TAGS = ("generation", "ETag", "etag", "md5Hash", "created", "mtime")
_NUM_THREADS = 8


class StoreError(BadInput):
    """A store cannot be read or written; the message names the address and the cause."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """Size and tag of an object; the tag changes when the content does."""

    size: int
    tag: str


class StoreFolder:
    """A folder on an object store; `list` and the other methods name objects by their paths below it."""

    def __init__(self, address: str) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or {".", ".."} & set(match["folder"].split("/")):
            raise BadInput(
                f"{shorten(address)}: not the address of a folder on a store; expected gs://BUCKET/FOLDER or "
                "SCHEME://BUCKET/FOLDER"
            )
        self.address = address.rstrip("/")
        try:
            import fsspec  # takes a second with its stores, which most runs do not use

            self._files: Any
            self._files, self._root = fsspec.url_to_fs(self.address)
        except (ImportError, ValueError) as error:  # no package of this scheme, no such scheme
            cause = install_extra("gcs") if match["scheme"] == "gs" else one_line(error)
            raise BadInput(f"{self.address}: fsspec cannot open {match['scheme']}:// here ({cause})") from None
        except Exception as error:  # credentials that cannot be read
            raise StoreError(f"{self.address}: cannot be opened ({type(error).__name__}: {one_line(error)})") from None

    def list(self) -> dict[str, Stored]:
        """Return the objects below the folder."""
        with self._explain("listed"):
            self._files.invalidate_cache()  # others write here too
            by_path = self._files.find(self._root, detail=True)
        objects = {}
        for path, facts in by_path.items():
            name = path.removeprefix(self._root).lstrip("/")
            if not name or name.endswith("/"):  # a marker of a folder, which consoles make
                continue
            if "\\" in name or {"", ".", ".."} & set(name.split("/")):
                raise StoreError(f"{self.address}: {shorten(name)!r} is not the name of a file")
            objects[name] = _describe_object(facts)
        return objects

    def look_up(self, name: str) -> Stored | None:
        """Return the size and tag of an object; None if there is no such object."""
        with self._explain("read"), contextlib.suppress(FileNotFoundError):
            self._files.invalidate_cache()
            facts = self._files.info(f"{self._root}/{name}")
            return None if facts.get("type") == "directory" else _describe_object(facts)
        return None

    def read(self, name: str) -> bytes:
        """Return the content of an object; b"" if there is none."""
        with self._explain("read"), contextlib.suppress(FileNotFoundError):
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
            return content
        return b""

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

    def download(self, objects: Mapping[str, Stored], folder: pathlib.Path) -> None:
        """Copy objects to files of a folder, each atomically."""
        terminal = Terminal()

        def get_one(name: str) -> None:
            path = folder / name
            partial = path.with_name(f".{path.name}.partial")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(f"{self._root}/{name}", str(partial))
            if (size := partial.stat().st_size) != objects[name].size:
                raise StoreError(f"{name}: {size} bytes came, {objects[name].size} were listed; try again")
            partial.replace(path)

        megabytes = sum(stored.size for stored in objects.values()) / 1e6
        with self._explain("read"), terminal.bar(f"download, {megabytes:.1f} MB", total=len(objects)):
            _call_all(get_one, objects, update=terminal.update)

    @contextlib.contextmanager
    def _explain(self, done: str) -> Iterator[None]:
        """Turn every error of the store into one line."""
        try:
            yield
        except Exception as error:  # botocore, aiohttp, google.auth and the system raise dozens of kinds
            if isinstance(error, OSError) and error.filename and is_machine_fault(error):  # of this machine's disk
                raise StoreError(f"{describe_disk(error, self.address)}; {self.address} is not {done}") from error
            cause = f"{type(error).__name__}: {one_line(error)}"
            raise StoreError(f"{self.address}: cannot be {done} ({cause})") from error


def _describe_object(facts: Mapping[str, Any]) -> Stored:
    return Stored(int(facts["size"]), next((str(facts[key]) for key in _TAGS if facts.get(key) is not None), ""))


def _call_all(
    call: Callable[[Any], None], items: Iterable[Any], *, update: Callable[[int], None] = lambda _: None
) -> None:
    """Call a function for each item, on several threads; the first error ends it."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for number, _ in enumerate(pool.map(call, items), start=1):
            update(number)
