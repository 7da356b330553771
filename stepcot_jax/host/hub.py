"""Files of the Hugging Face hub by id: downloaded into huggingface_hub's cache, errors on one line.

Nothing that is downloaded is run here or by huggingface_hub. `HF_ENDPOINT` names another server, `HF_TOKEN` or
`hf auth login` the account, `HF_HUB_OFFLINE=1` forbids the network.
"""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line


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
        raise BadInput(explain_failure(source, error)) from None


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


def explain_failure(address: str, error: Exception, *, writing: bool = False) -> str:
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
