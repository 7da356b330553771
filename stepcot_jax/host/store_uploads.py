"""Upload a folder to a store so that no reader takes a part of it for the whole.

A store cannot rename a folder. While files are uploaded, `unfinished.json` lies beside them and names the new ones:
readers refuse such a folder, and the next command that writes there removes what a killed one has left.
"""

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.leases import LEASE_FILE
from stepcot_jax.host.stores import Stored, StoreError, StoreFolder

UNFINISHED = "unfinished.json"


class _Unfinished(msgspec.Struct, frozen=True):
    """Content of `unfinished.json`: the objects that did not exist before the upload."""

    new: list[str]


@contextlib.contextmanager
def uploading(store: StoreFolder, names: Iterable[str]) -> Iterator[None]:
    """Mark a folder as unfinished within the context, which uploads objects of these names.

    If the context fails, those that are new are removed. A replaced object keeps its new content: if there may be one,
    the mark stays until the next command writes to the folder.

    Raises:
      StoreError: the store cannot be read or written.
    """
    names = set(names)
    if not names:
        yield
        return
    found = store.list().keys()
    new = sorted(names - found)
    store.write(UNFINISHED, msgspec.json.encode(_Unfinished(new)))
    try:
        yield
    except BaseException:
        with contextlib.suppress(StoreError):  # the next command that writes there does it
            if names & found:
                store.remove(store.list().keys() & set(new))
            else:
                drop_unfinished(store)
        raise
    store.remove([UNFINISHED])


def drop_unfinished(store: StoreFolder) -> None:
    """Remove the new objects of an upload that did not end, and its mark.

    Raises:
      StoreError: the store cannot be read or written, or the mark is not one.
    """
    content = store.read(UNFINISHED)
    if content is None:
        return
    try:
        new = msgspec.json.decode(content, type=_Unfinished).new
    except msgspec.DecodeError:
        raise StoreError(f"{store.address}/{UNFINISHED}: damaged; expected the file that an upload wrote") from None
    store.remove(store.list().keys() & set(new))
    store.remove([UNFINISHED])


def is_whole(store: StoreFolder) -> bool:
    """Return whether a folder has files and no unfinished upload.

    Raises:
      StoreError: the store cannot be read.
    """
    found = store.list().keys() - {LEASE_FILE}
    return bool(found) and UNFINISHED not in found


def list_whole(store: StoreFolder) -> dict[str, Stored]:
    """Return the objects of a folder that is read, without the lease of a command that writes there.

    Raises:
      BadInput: an upload to it has not ended.
      StoreError: the store cannot be read.
    """
    found = store.list()
    if any(name.rpartition("/")[2] == UNFINISHED for name in found):
        raise BadInput(
            f"{store.address}: holds {UNFINISHED}, so its upload goes on or was interrupted; expected a whole folder "
            "(the command that wrote it completes it when it is run again)"
        )
    found.pop(LEASE_FILE, None)
    return found
