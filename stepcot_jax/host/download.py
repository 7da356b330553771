"""Resolve names of folders and files to paths; an extra for the scheme of an address downloads it.

No other module of the library looks for addresses. The second half downloads repositories of the Hugging Face hub into
huggingface_hub's cache; neither this module nor huggingface_hub runs what it downloads. `HF_ENDPOINT` names another
server, `HF_TOKEN` or `hf auth login` the account, `HF_HUB_OFFLINE=1` forbids the network.
"""

import contextlib
import difflib
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import find_extra, list_extras
from stepcot_jax.host.text import one_line, shorten
from stepcot_jax.host.untrusted import resolve

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PACKAGES = {"gs": "gcs", "hf": "hub"}
"""Schemes -> optional dependencies of pyproject.toml that read them."""


def is_address(name: object) -> bool:
    """Return whether a name begins with a scheme, as "gs://..." does, also after `pathlib` has dropped a slash."""
    return isinstance(name, str | os.PathLike) and _ADDRESS.match(os.fspath(name)) is not None


def refuse_address(name: str | os.PathLike[str]) -> None:
    """Refuse an address where something is written: `pathlib` would make a folder "gs:" in the working directory."""
    if is_address(name):
        raise BadInput(
            f"{shorten(os.fspath(name))} is an address; expected a folder or file of this machine (write there, then "
            "send it: stepcot sync FOLDER ADDRESS)"
        )


def check_scheme(address: str) -> str:
    """Return the scheme of an address; refuse one that no extra reads."""
    scheme, mark, _ = address.partition("://")
    if not mark:
        raise BadInput(f"{shorten(address)}: not an address with :// (pass it as text; pathlib drops a slash)")
    known = sorted({*_PACKAGES, *list_extras("scheme")})
    if scheme not in known:
        raise BadInput(
            f"{shorten(address)}: unknown scheme; expected a path of this machine, or an address of "
            f"{', '.join(f'{name}://' for name in known)} (for another store: a folder here, sent by stepcot sync "
            "FOLDER ADDRESS)"
        )
    return scheme


def find_path(name: str | os.PathLike[str], flag: str = "") -> pathlib.Path:
    """Return the local path of a folder or file; what an address names is downloaded first. Messages name `flag`."""
    if not is_address(name):
        return pathlib.Path(name)
    try:
        address = os.fspath(name)
        found: pathlib.Path = _find_extra("scheme", address)(address)
        return found
    except BadInput as error:
        raise type(error)(f"{flag}: {error}" if flag else str(error)) from error


PHANTOM = "phantom"
"""Name of the reader of drawn chests that the package ships; `python -m benchmarks.make_reader` makes its folder."""


def find_checkpoint(name: str | os.PathLike[str], flag: str = "--checkpoint") -> pathlib.Path:
    """Return the local folder of a run or an export, as `find_path`; "phantom" is the shipped reader's."""
    if os.fspath(name) != PHANTOM:
        path = find_path(name, flag)
        if not path.exists() and difflib.get_close_matches(os.fspath(name).casefold(), [PHANTOM], cutoff=0.88):
            found = f"{flag}: no such folder: {shorten(os.fspath(name))}"
            raise BadInput(f"{found}; the reader that stepcot_jax ships is named {PHANTOM}")
        return path
    if pathlib.Path(PHANTOM).exists():
        found = f"{flag}: {PHANTOM} is the one in this folder; rename it to read with what stepcot_jax ships"
        print(found, file=sys.stderr)
        return pathlib.Path(PHANTOM)
    import importlib.resources  # with zipfile and tempfile, which few commands need

    return pathlib.Path(str(importlib.resources.files("stepcot_jax"))) / "phantom_reader"


def open_remote(address: str, *, say: Callable[[str], None], part: str = "", only_adds: bool = False) -> Any:
    """Return the extra that synchronises a local folder with an address; see the kind `remote` in `extras`."""
    scheme = check_scheme(address)
    if scheme != "gs" and scheme not in list_extras("remote"):
        raise BadInput(f"{address}: nothing is written to {scheme}://; expected a folder of this machine, or gs://")
    return _find_extra("remote", address)(address, say=say, part=part, only_adds=only_adds)


def name_source(name: str) -> str:
    """Return a canonical name: an address without a slash at its end, or an absolute path without links."""
    return name.rstrip("/") if is_address(name) else str(resolve(name))


def _find_extra(kind: str, address: str) -> Any:
    scheme = check_scheme(address)
    return find_extra(kind, scheme, packages=_PACKAGES.get(scheme, scheme))


# The Hugging Face hub.


_HUB_ID = re.compile(r"(?P<repository>\w[\w.-]*(?:/\w[\w.-]*)?)(?:@(?P<revision>\w[\w./-]*))?", re.ASCII)


def split_hub_id(source: str) -> tuple[str, str | None]:
    """Return repository and revision of a Hugging Face id.

    >>> split_hub_id("openai/clip-vit-base-patch32@main")
    ('openai/clip-vit-base-patch32', 'main')
    """
    match = _HUB_ID.fullmatch(source)
    if match is None:
        raise BadInput(f"{shorten(source)}: no such folder or file, and not a Hugging Face id (owner/name[@revision])")
    _check_parts(source, match["repository"], match["revision"])
    return match["repository"], match["revision"]


def _check_parts(source: str, repository: str, revision: str | None) -> None:
    """Refuse names of only dots between slashes: huggingface_hub makes paths of repository and revision."""
    for name in (repository, revision or "main"):
        if any(part.strip(".") == "" for part in name.split("/")):
            raise BadInput(f"{shorten(source)}: {shorten(name)!r} is not the name of a repository or revision")


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
    _check_parts(source, repository, revision)
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
    """Return the one-line message for an error of huggingface_hub, with its remedy."""
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
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
