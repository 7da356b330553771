"""The licence in the metadata of a card: given by the user, or kept from the card that the hub has."""

import contextlib
import hashlib
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.hub import read_hub_file
from stepcot_jax.host.text import make_printable
from stepcot_jax.training.exported_weights import SUMS_FILE

CARD_FILE = "README.md"

_KEY = re.compile(r"license(_name|_link)?:")
_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_MOST_LINES, _LONGEST = 20, 500
_MOST_CARD_BYTES = 2**22


@contextlib.contextmanager
def with_licence(folder: pathlib.Path, repository: str, licence: str | None) -> Iterator[pathlib.Path]:
    """Give the folder to upload: the export, or a copy whose card has the licence, and its digest.

    Args:
      licence: of the weights, an identifier of the hub such as "cc-by-nc-4.0"; None for none.
    """
    if licence is not None and not _IDENTIFIER.fullmatch(licence):
        raise BadInput(
            f"--license: {licence[:80]!r} is no identifier of a licence on the hub, such as apache-2.0, cc-by-nc-4.0 "
            "or other"
        )
    path = folder / CARD_FILE
    if not path.is_file():
        if licence is not None:
            raise BadInput(f"{folder}: no {CARD_FILE}, so there is no card to write --license to")
        yield folder  # the hub's own card stays
        return
    card = read_file(path, max_bytes=_MOST_CARD_BYTES, accepted="a card").decode()
    found = [f"license: {licence}"] if licence else []
    if not found and not read_licence(card):
        found = read_licence((read_hub_file(repository, CARD_FILE) or b"").decode(errors="replace"))
    if not found:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="stepcot-licence-") as made:
        copy = pathlib.Path(made, folder.name)
        shutil.copytree(folder, copy, copy_function=_link)
        changed = write_licence(card, found).encode()
        sums = [
            f"{hashlib.sha256(changed).hexdigest()}  {CARD_FILE}" if line.endswith(f"  {CARD_FILE}") else line
            for line in read_file(folder / SUMS_FILE, max_bytes=_MOST_CARD_BYTES, accepted="digests")
            .decode()
            .split("\n")
        ]
        for name, content in ((CARD_FILE, changed), (SUMS_FILE, "\n".join(sums).encode())):
            (copy / name).unlink()  # a link
            (copy / name).write_bytes(content)
        yield copy


def _link(source: str, target: str) -> None:
    """Link to a file of gigabytes in place of copying it."""
    pathlib.Path(target).symlink_to(pathlib.Path(source).resolve())


def read_licence(card: str) -> list[str]:
    r"""Return the lines of a card's metadata that name its licence.

    >>> read_licence("---\nlicense: other\nlicense_name: ours\ntags:\n- jax\n---\n# A card")
    ['license: other', 'license_name: ours']
    """
    return [line for line, is_licence in _mark(card) if is_licence][:_MOST_LINES]


def write_licence(card: str, lines: list[str]) -> str:
    r"""Return a card with these lines in the place of its licence.

    >>> write_licence("---\nlicense: other\ntags:\n- jax\n---\n# A card", ["license: mit"])
    '---\nlicense: mit\ntags:\n- jax\n---\n# A card'
    """
    marked = _mark(card)
    kept = [line for line, is_licence in marked if not is_licence]
    body = card.split("\n")[len(marked) + 2 :] if marked else card.split("\n")
    return "\n".join(["---", *lines, *kept, "---", *body])


def _mark(card: str) -> list[tuple[str, bool]]:
    """Return the lines of the metadata, each with whether it is of the licence; [] without metadata."""
    first, *rest = card.replace("\r\n", "\n").split("\n")
    if first != "---" or "---" not in rest:
        return []
    marked, is_licence = [], False
    for line in rest[: rest.index("---")]:
        if not line.startswith((" ", "-")):
            is_licence = bool(_KEY.match(line))
        marked.append((make_printable(line[:_LONGEST]) if is_licence else line, is_licence))
    return marked
