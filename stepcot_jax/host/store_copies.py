"""Copy objects of a store to a folder of this machine, so that an interrupted copy goes on."""

import pathlib
import shutil
from collections.abc import Mapping

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.stores import Stored, StoreError, StoreFolder
from stepcot_jax.host.terminal import Terminal

_AT_ONCE = 64
_SPARE_BYTES = 2**28


def copy_missing(store: StoreFolder, found: Mapping[str, Stored], folder: pathlib.Path, *, terminal: Terminal) -> int:
    """Copy the objects that a folder does not have with the same size; each file is written whole or not at all."""
    missing = [name for name in sorted(found) if not _is_here(folder / name, found[name].size)]
    size, free = sum(found[name].size for name in missing), shutil.disk_usage(folder).free
    if missing and size + _SPARE_BYTES > free:
        raise BadInput(f"{store.address}: the files to copy take {size} bytes; {folder} has {free} free")
    done = 0
    with terminal.bar(f"fetch, {size / 1e6:.1f} MB", total=len(missing)):
        for names in _batched(missing):
            partial = {
                name: (folder / name).with_name(f".{pathlib.PurePosixPath(name).name}.partial") for name in names
            }
            store.download(partial)
            for name, path in partial.items():
                if path.stat().st_size != found[name].size:
                    raise StoreError(
                        f"{store.address}/{name}: {path.stat().st_size} bytes came, {found[name].size} were listed; it "
                        "has changed or was cut off: try again"
                    )
                path.replace(folder / name)
            done += len(names)
            terminal.update(done)
    return len(missing)


def _is_here(path: pathlib.Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _batched(names: list[str]) -> list[list[str]]:
    return [names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE)]
