"""SHA-256 of a checkpoint's files, written before the checkpoint gets its name and compared before it is read.

Orbax merges what the processes wrote when the first one commits, in the background. Each process hashes its own files
before, so that the first reads the others' digests instead of their arrays.
"""

import asyncio
import contextlib
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import msgspec
import orbax.checkpoint as ocp

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, read_json, write_whole

DIGESTS = "digests.json"
_OF_PROCESS = "digests_of_process_{}.json"
_WRITTEN_LATER = frozenset({DIGESTS, "_CHECKPOINT_METADATA", "commit_success.txt"})
"""Files of Orbax about the commit itself: no array and no number of a run stands in them."""


class Changed(Exception):
    """A file of a checkpoint that is not what was saved."""


def list_files(checkpoint: pathlib.Path) -> Iterator[str]:
    """Yield the files of a checkpoint that have digests, by their paths below it."""
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name not in _WRITTEN_LATER:
            yield path.relative_to(checkpoint).as_posix()


def write_digests(checkpoint: pathlib.Path) -> None:
    """Write the digests of a checkpoint that is about to be committed."""
    known: dict[str, tuple[int, str]] = {}
    written = [*checkpoint.rglob(_OF_PROCESS.format("*")), *checkpoint.glob(f"*/{DIGESTS}")]  # of processes, of items
    for part in written:
        folder = part.parent.relative_to(checkpoint).as_posix()
        known |= {f"{folder}/{name}": entry for name, entry in _read(part).items()}
        part.unlink()
    digests = {name: known.get(name) or digest_file(checkpoint / name) for name in list_files(checkpoint)}
    write_whole(checkpoint / DIGESTS, msgspec.json.format(msgspec.json.encode(digests)))


class DigestedPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """The temporary folder of a checkpoint, or of an item in it, which gets digests before its final name."""

    async def finalize(self) -> None:
        """Write the digests, then rename the folder."""
        await asyncio.to_thread(write_digests, pathlib.Path(self.get()))
        await super().finalize()


class DigestingHandler(ocp.StandardCheckpointHandler):
    """Orbax's handler of a state, after which each of several processes hashes what it wrote."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Start the writes, and the hashing behind them."""
        futures = list(await super().async_save(directory, *args, **kwargs) or ())
        return [*futures, _Hashing(pathlib.Path(directory))] if jax.process_count() > 1 else futures


def make_registry() -> ocp.handlers.CheckpointHandlerRegistry:
    """Return Orbax's handlers of the items of a checkpoint."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    state, progress = DigestingHandler(), ocp.JsonCheckpointHandler()
    for arguments in (ocp.args.StandardSave, ocp.args.StandardRestore):
        registry.add("state", arguments, state)
    for arguments in (ocp.args.JsonSave, ocp.args.JsonRestore):
        registry.add("progress", arguments, progress)
    return registry


class _Hashing(ocp.future.Future):
    """Hashes the files of this process when Orbax's background thread comes to it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def result(self, timeout: float | None = None) -> None:  # noqa: ARG002 - Orbax's signature
        number = jax.process_index()
        written = self._folder / f"ocdbt.process_{number}"
        names = [path.relative_to(self._folder).as_posix() for path in written.rglob("*") if path.is_file()]
        digests = {name: digest_file(self._folder / name) for name in names}
        write_whole(self._folder / _OF_PROCESS.format(number), msgspec.json.encode(digests))


def check_digests(checkpoint: pathlib.Path, *, below: str = "", part: int = 0, num_parts: int = 1) -> None:
    """Compare a checkpoint's files with its digests; a checkpoint of an older version, without any, gets a note.

    Args:
      below: a folder of the checkpoint, to which the check is limited.
      part: of the `num_parts` that the files are divided into, so that processes share the work.

    Raises:
      Changed: a file was changed, is missing or was added, or the digests are missing beside steps that have them.
    """
    if not (checkpoint / DIGESTS).is_file():
        others = sorted(path.parent.name for path in checkpoint.parent.glob(f"*/{DIGESTS}"))
        if others:
            raise Changed(f"{DIGESTS} is missing, which the checkpoints {', '.join(others)} have")
        _note_missing(checkpoint.parent)
        return
    try:
        digests = _read(checkpoint / DIGESTS)
    except BadInput as error:
        raise Changed(f"{DIGESTS} cannot be read: {error}") from None
    prefix = f"{below}/" if below else ""
    present = {name for name in list_files(checkpoint) if name.startswith(prefix)}
    named = {name for name in digests if name.startswith(prefix)}
    for name in sorted(present ^ named):
        raise Changed(f"{name} {'is missing' if name in named else 'was added'} since it was saved")
    for name in sorted(named)[part::num_parts]:
        path, (size, digest) = checkpoint / name, digests[name]
        if path.stat().st_size != size or digest_file(path) != (size, digest):
            raise Changed(f"{name} has changed since it was saved")


def _read(path: pathlib.Path) -> dict[str, tuple[int, str]]:
    return read_json(path, dict[str, tuple[int, str]], accepted="expected digests of files")


@functools.cache
def _note_missing(folder: pathlib.Path) -> None:
    print(f"note: {folder}: saved by an older version, without digests: damaged files are not noticed", file=sys.stderr)


def committed_steps(folder: pathlib.Path) -> list[int]:
    """Return the steps below a folder whose checkpoints were committed, files missing since then or not."""
    marks = folder.glob("*/_CHECKPOINT_METADATA")
    return sorted(int(mark.parent.name) for mark in marks if mark.parent.name.isdigit())


def is_complete(checkpoint: pathlib.Path) -> bool:
    """Return whether a checkpoint was committed and no file is missing, without reading the arrays."""
    try:
        check_complete(checkpoint)
    except Changed:
        return False
    return True


def check_complete(checkpoint: pathlib.Path) -> None:
    """Raise Changed if a checkpoint was not committed or a file is missing, without reading the arrays."""
    names = ["_CHECKPOINT_METADATA", "state", "progress"]
    with contextlib.suppress(BadInput):  # damaged digests are named by the check on reading
        names += _read(checkpoint / DIGESTS)
    for name in names:
        if not (checkpoint / name).exists():
            raise Changed(f"{name} is missing since it was saved")
