"""The Hugging Face hub: exports uploaded with their licence (`stepcot export push`), and read from hf:// addresses."""

import argparse
import hashlib
import json
import pathlib
import re
import shlex
import sys
from collections.abc import Mapping

from stepcot_jax import __version__
from stepcot_jax.host.download import explain_failure, fetch, find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import MANIFEST_FILE, READ_SUFFIXES, SUMS, Files, is_export, read_sums
from stepcot_jax.host.files import read_file
from stepcot_jax.host.terminal import name_command
from stepcot_jax.host.text import shorten

SCHEME = "hf://"

_ID = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?", re.ASCII)
_FORM = "hf://OWNER/NAME or hf://OWNER/NAME@REVISION"
_MOST_BYTES = 8 * 2**30
_LOADED = ("*.safetensors", SUMS, *(f"*{suffix}" for suffix in READ_SUFFIXES))
_NOT_LOADED = ("check.safetensors",)
"""Patterns of an export's files that readers use; its programs and its loader are not among them."""

CARD_FILE = "README.md"
_LICENCE = "licence of the weights in the card, such as cc-by-nc-4.0 (default: that of the repository's card)"

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


def find_folder(address: str) -> pathlib.Path:
    """Return the folder of an export on the hub, which is downloaded first; stderr names its commit."""
    folder = download_folder(address)
    if not is_export(folder):
        raise BadInput(f"{address}: no {MANIFEST_FILE}; expected what stepcot export --push-to-hub uploads")
    if (pinned := pin_address(address, folder)) != address:
        print(f"read {pinned} (this address repeats the result)", file=sys.stderr)
    return folder


def download_folder(address: str) -> pathlib.Path:
    """Download the files that readers use; without a network those of the cache, if they are complete."""
    match = _ID.fullmatch(address.removeprefix(SCHEME))
    if match is None:
        raise BadInput(f"{shorten(address)}: not an address on the Hugging Face hub; expected {_FORM}")
    return fetch(
        address,
        match["repository"],
        match["revision"],
        allow=_LOADED,
        ignore=["*/*", *_NOT_LOADED],
        most_bytes=_MOST_BYTES,
    )


def pin_address(address: str, folder: pathlib.Path) -> str:
    """Return the address with the commit that `download_folder` read, whose files never change."""
    return f"{address.partition('@')[0]}@{folder.name}"


def check_account(repository: str) -> None:
    """Refuse a repository's name that is not OWNER/NAME, and a machine without a token of an account."""
    match = _ID.fullmatch(repository)
    if match is None or match["revision"]:
        raise BadInput(f"{shorten(repository)}: not a name on the Hugging Face hub; expected OWNER/NAME")
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise BadInput(
            f"{repository}: no token for the Hugging Face hub; run hf auth login, or set HF_TOKEN to a token with "
            "write access (https://huggingface.co/settings/tokens)"
        )


def upload_files(files: Mapping[str, pathlib.Path | bytes], repository: str, *, private: bool, message: str) -> str:
    """Upload files by name as one commit and return its address, hf://OWNER/NAME@COMMIT."""
    check_account(repository)
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        added = [huggingface_hub.CommitOperationAdd(name, content) for name, content in files.items()]
        made = api.create_commit(repository, added, commit_message=message)
    except Exception as error:  # the hub, its HTTP library and the system raise a dozen kinds
        raise BadInput(explain_failure(f"{SCHEME}{repository}", error, writing=True)) from None
    return f"{SCHEME}{repository}@{made.oid}"


def push_export(
    folder: pathlib.Path, repository: str, *, private: bool, licence: str | None = None, name: str = ""
) -> str:
    """Upload an export and return its address; without a licence the card keeps that of the repository."""
    if not (folder / SUMS).is_file():
        raise BadInput(f"{folder}: not an export (no {SUMS})")
    Files(folder)
    names = read_sums(folder)
    if strays := sorted({path.name for path in folder.iterdir()} - {*names, SUMS}):
        raise BadInput(f"{folder / strays[0]}: not a file of the export; expected only files that {SUMS} names")
    try:
        files: dict[str, pathlib.Path | bytes] = {
            **{file: folder / file for file in (*names, SUMS)},
            **_write_licence(folder, repository, licence),
        }
        return upload_files(files, repository, private=private, message=f"Export of stepcot-jax {__version__}")
    except BadInput as error:
        name = name or str(folder)
        again = f"{name_command()} export push {shlex.quote(name)} {repository}"
        raise BadInput(f"{error}; the export is complete in {name}, and {again} uploads it") from None


def describe_address(address: str, folder: pathlib.Path) -> str:
    """Return where an export was uploaded and how to use it: `sc.load` reads all kinds but checkpoints."""
    repository, _, revision = address.removeprefix(SCHEME).partition("@")
    download = f"{name_command('hf')} download {repository} --revision={revision} --local-dir=DIR"
    return f"uploaded: {address}\nnext: " + (
        f'sc.load("{address}")' if (folder / MANIFEST_FILE).is_file() else download
    )


def main(arguments: list[str]) -> int:
    """Upload an export, as the arguments of `stepcot export push` say."""
    parser = argparse.ArgumentParser(
        prog="stepcot export push", description="Upload an export to the Hugging Face hub."
    )
    parser.add_argument("folder", metavar="DIR", help="of an export; or gs://")
    parser.add_argument("repository", metavar="OWNER/NAME", help="created if missing")
    parser.add_argument("--private", action="store_true", help="a new repository is private")
    parser.add_argument("--license", metavar="ID", help=_LICENCE)
    parser.add_argument("--json", action="store_true", help="print the address as one JSON line")
    flags = parser.parse_args(arguments)
    check_account(flags.repository)
    folder = find_path(flags.folder, "DIR")
    address = push_export(folder, flags.repository, private=flags.private, licence=flags.license, name=flags.folder)
    print(json.dumps({"address": address}) if flags.json else describe_address(address, folder))
    return 0


def _write_licence(folder: pathlib.Path, repository: str, licence: str | None) -> dict[str, bytes]:
    """Return card and digests of an export with the licence given, or else the repository's; {} if they stay."""
    from huggingface_hub import ModelCard

    if licence is not None and not _IDENTIFIER.fullmatch(licence):
        named = "such as apache-2.0, cc-by-nc-4.0 or other"
        raise BadInput(f"--license: {licence[:80]!r} is no identifier of a licence on the hub, {named}")
    path = folder / CARD_FILE
    if licence is not None and not path.is_file():
        raise BadInput(f"{folder}: no {CARD_FILE}, so there is no card to write --license to")
    card = ModelCard(read_file(path, max_bytes=2**22, accepted="a card").decode()) if path.is_file() else None
    has_licence = card is None or card.data.to_dict().get("license")
    of_card = {"license": licence} if licence or has_licence else _find_licence(repository)
    if card is None or not any(of_card.values()):
        return {}
    vars(card.data).update(of_card)
    content = str(card).encode()
    digests = {**read_sums(folder), CARD_FILE: hashlib.sha256(content).hexdigest()}
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    return {CARD_FILE: content, SUMS: sums.encode()}


def _find_licence(repository: str) -> dict[str, str | None]:
    """Return what the card of a repository names as its licence; nothing without a repository."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        data = huggingface_hub.HfApi().model_info(repository).card_data
    except errors.RepositoryNotFoundError:
        return {}
    except Exception as error:
        raise BadInput(explain_failure(f"{SCHEME}{repository}", error, writing=True)) from None
    return {name: getattr(data, name, None) for name in ("license", "license_name", "license_link")}
