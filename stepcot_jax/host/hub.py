"""Folders on the Hugging Face hub: downloaded into huggingface_hub's cache, uploaded as one commit, errors on one line.

Nothing that is downloaded is run here or by huggingface_hub. `HF_ENDPOINT` names another server, `HF_TOKEN` or
`hf auth login` the account, `HF_HUB_OFFLINE=1` forbids the network.
"""

import contextlib
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import one_line, shorten

SCHEME = "hf://"

_ID = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?", re.ASCII)
_FORM = "hf://OWNER/NAME or hf://OWNER/NAME@REVISION"
_MOST_BYTES = 8 * 2**30
_MOST_CARD_BYTES = 2**20


def is_hub_address(source: object) -> bool:
    """Return whether a source is an address of the hub, "hf://...", and not a path.

    >>> is_hub_address("hf://ann/chest"), is_hub_address("runs/chest")
    (True, False)
    """
    return isinstance(source, str) and source.startswith(SCHEME)


def download_folder(address: str, *, allow: Sequence[str], ignore: Sequence[str]) -> pathlib.Path:
    """Download the files of a repository's top folder that match, and return their folder in the cache.

    Without a network the cached files of the revision are used, if all of them are there. A download that broke off
    goes on where it stopped.
    """
    found = _ID.fullmatch(address.removeprefix(SCHEME))
    if not is_hub_address(address) or found is None:
        raise BadInput(f"{shorten(address)}: not an address on the Hugging Face hub; expected {_FORM}")
    return fetch(
        address,
        found["repository"],
        found["revision"],
        allow=allow,
        ignore=["*/*", *ignore],
        most_bytes=_MOST_BYTES,
    )


def pin_address(address: str, folder: pathlib.Path) -> str:
    """Return the address with the commit that `download_folder` read, which names the same files for ever.

    >>> pin_address("hf://ann/chest@v1", pathlib.Path("cache/models--ann--chest/snapshots/6f0c"))
    'hf://ann/chest@6f0c'
    """
    return f"{address.partition('@')[0]}@{folder.name}"


def fetch(
    source: str,
    repository: str,
    revision: str | None,
    *,
    allow: Sequence[str],
    ignore: Sequence[str] = (),
    most_bytes: int | None = None,
) -> pathlib.Path:
    """Download files of a repository into huggingface_hub's cache, and return their folder, named by the commit."""
    import huggingface_hub  # seconds; most loads are of folders
    from huggingface_hub import errors

    wanted: dict[str, Any] = {"revision": revision, "allow_patterns": list(allow)}
    wanted |= {"ignore_patterns": list(ignore)} if ignore else {}
    try:
        if most_bytes is not None:
            with contextlib.suppress(errors.DryRunError):  # no network: the cache may have the files
                files = huggingface_hub.snapshot_download(repository, **wanted, dry_run=True, tqdm_class=_no_bar())
                _check_sizes(source, files, most_bytes)
        return pathlib.Path(huggingface_hub.snapshot_download(repository, **wanted))
    except BadInput:
        raise
    except Exception as error:  # the hub, its HTTP library and the system raise a dozen kinds
        raise BadInput(_explain(source, error)) from None


def read_hub_file(repository: str, name: str) -> bytes | None:
    """Return a small file of a repository's main branch before an upload; None without such a file or repository."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        # Asked first: without a network it fails at once, where a download retries for half a minute.
        info = huggingface_hub.HfApi().model_info(repository, revision="main")
        if name not in {file.rfilename for file in info.siblings or ()}:
            return None
        path = huggingface_hub.hf_hub_download(repository, name, revision=info.sha)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        return None
    except Exception as error:
        raise BadInput(_explain(f"{SCHEME}{repository}", error, writing=True)) from None
    return read_file(pathlib.Path(path), max_bytes=_MOST_CARD_BYTES, accepted="a card")


def check_account(repository: str) -> None:
    """Refuse a repository's name that the hub does not take, and a machine without an account's token."""
    found = _ID.fullmatch(repository)
    if found is None or found["revision"]:
        raise BadInput(f"{shorten(repository)}: not a name on the Hugging Face hub; expected OWNER/NAME")
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise BadInput(
            f"{repository}: no token for the Hugging Face hub; run hf auth login, or set HF_TOKEN to a token with "
            "write access (https://huggingface.co/settings/tokens)"
        )


def upload_folder(folder: pathlib.Path, repository: str, *, private: bool, message: str) -> str:
    """Upload the files of a folder as one commit and return its address, hf://OWNER/NAME@COMMIT.

    Args:
      folder: its files go to the top folder of the repository, which is created if missing; other files there stay.
    """
    check_account(repository)
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        made = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as error:  # the hub, its HTTP library and the system raise a dozen kinds
        raise BadInput(_explain(f"{SCHEME}{repository}", error, writing=True)) from None
    return f"{SCHEME}{repository}@{made.oid}"


def _no_bar() -> Any:
    """Return a progress bar that shows nothing, for listing files."""
    from huggingface_hub.utils import tqdm

    class NoBar(tqdm):
        def __init__(self, *values: Any, **options: Any) -> None:
            super().__init__(*values, **{**options, "disable": True})

    return NoBar


def _check_sizes(address: str, files: Any, most_bytes: int) -> None:
    total = sum(file.file_size or 0 for file in files)
    if not files:
        raise BadInput(f"{address}: the repository has none of the expected files")
    if total > most_bytes:
        raise BadInput(f"{address}: the files take {total} bytes; the limit is {most_bytes}")


def _explain(address: str, error: Exception, *, writing: bool = False) -> str:
    """Return what to do about an error of huggingface_hub, on one line."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{address}: the repository has no such revision; expected one of its branches, tags or commits"
    if isinstance(error, errors.GatedRepoError):
        return f"{address}: access is gated; accept its conditions on the hub, then run hf auth login"
    if writing and status in (401, 403):
        return f"{address}: the token may not write there (HTTP {status}); expected your own name or an organisation's"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        return (
            f"{address}: no such repository, or a private one that this account may not read (HTTP {status}); check "
            "the name, or run hf auth login"
        )
    if isinstance(error, errors.IncompleteSnapshotError):
        return f"{address}: the hub cannot be reached, and an earlier download in the cache is incomplete; run it again"
    if isinstance(error, errors.LocalEntryNotFoundError) or "Connect" in name or name == "OfflineModeIsEnabled":
        also = "nothing was committed" if writing else "the cache does not have this revision"
        return f"{address}: the hub cannot be reached ({_root(error)}), and {also}"
    if isinstance(error, errors.HFValidationError):
        return f"{address}: {one_line(error)}"
    what = "upload" if writing else "download"
    return f"{address}: the {what} broke off ({name}: {one_line(error)}); running it again continues it"


def _root(error: BaseException) -> str:
    """Return the kind of the first error of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
