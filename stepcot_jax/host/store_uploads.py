"""Upload a folder to a store so that no reader takes a part of it for the whole.

A store cannot rename a folder. While files are uploaded, `unfinished.json` lies beside them: readers refuse such a
folder. It names the new objects, which the next command that writes there removes if the upload did not end, and those
that are replaced or removed, of which some may then be new and some old: the mark stays until an upload of them ends.
"""

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.leases import LEASE_FILE
from stepcot_jax.host.stores import Stored, StoreError, StoreFolder

UNFINISHED = "unfinished.json"


class _Unfinished(msgspec.Struct, frozen=True):
    """Content of `unfinished.json`: objects that did not exist before the upload, and those that did."""

    new: list[str]
    old: list[str] = []


@contextlib.contextmanager
def uploading(store: StoreFolder, names: Iterable[str], *, is_all: bool = False) -> Iterator[None]:
    """Mark a folder as unfinished within the context, which uploads or removes objects of these names.

    If the context fails, those that are new are removed, and the mark stays if others are among the names; after Ctrl-C
    both are left to the next command that writes to the folder, as uploads may be going on.

    Args:
      is_all: whether all objects are as they should be after the context, also those of an earlier upload that failed.
    """
    names, found = set(names), store.list().keys()
    earlier = set(_read_mark(store).old) if UNFINISHED in found else set()
    if names:
        _write_mark(store, new=names - found, old=(names & found) | earlier)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        with contextlib.suppress(StoreError):  # the next command that writes there does it
            drop_unfinished(store)
        raise
    if names or is_all:
        _write_mark(store, new=set(), old=set() if is_all else earlier - names)


def drop_unfinished(store: StoreFolder, *, is_all: bool = False) -> None:
    """Remove the new objects of an upload that did not end, and its mark unless it replaced or removed others."""
    found = store.list().keys()
    if UNFINISHED in found:
        mark = _read_mark(store)
        store.remove(found & set(mark.new))
        _write_mark(store, new=set(), old=set() if is_all else set(mark.old))


def _read_mark(store: StoreFolder) -> _Unfinished:
    try:
        return msgspec.json.decode(store.read(UNFINISHED) or b"", type=_Unfinished)
    except msgspec.DecodeError:
        raise StoreError(f"{store.address}/{UNFINISHED}: damaged; expected the file that an upload wrote") from None


def _write_mark(store: StoreFolder, *, new: set[str], old: set[str]) -> None:
    """Write the mark, or remove it if it would name nothing."""
    if new or old:
        store.write(UNFINISHED, msgspec.json.encode(_Unfinished(sorted(new), sorted(old))))
    else:
        store.remove([UNFINISHED])


def is_whole(store: StoreFolder) -> bool:
    """Return whether a folder has files and no unfinished upload."""
    found = store.list().keys() - {LEASE_FILE}
    return bool(found) and UNFINISHED not in found


def list_whole(store: StoreFolder, *, is_run: bool = False) -> dict[str, Stored]:
    """Return the objects of a folder that is read, without the lease of a command that writes there.

    Args:
      is_run: whether it is a run's, in which outputs of other commands may lie that are not read.
    """
    found = store.list()
    marks = [name for name in found if name == UNFINISHED or (name.endswith(f"/{UNFINISHED}") and not is_run)]
    if marks:
        raise BadInput(
            f"{store.address}: holds {marks[0]}, so its upload goes on or was interrupted; expected a whole folder "
            "(the command that wrote it completes it when it is run again)"
        )
    found.pop(LEASE_FILE, None)
    return found
