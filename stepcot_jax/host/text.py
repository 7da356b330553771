"""Text that is safe to hand to other programs: spreadsheet cells, Markdown, terminals and matplotlib."""

import contextlib
import csv
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from stepcot_jax.host.terminal import escape_controls, name_command

# Characters that start a formula in spreadsheets, including their full-width forms.
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
# Underscores within words, and brackets without a link after them, need no escape.
_MARKDOWN = re.compile(r"[\\|*`~$]|(?<![^\W_])_|_(?![^\W_])|\](?=\()|^#")

_NUM_SHOWN = 80
_MOST_LISTED = 26

_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Noto Sans", "Arial Unicode MS")


def defuse_formula(cell: str) -> str:
    """Return a CSV cell, with an apostrophe in front if a spreadsheet would run it as a formula; not a number."""
    if not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def write_csv(file: TextIO, rows: Iterable[Iterable[Any]], *, end: str = "\n") -> None:
    """Write rows, the header among them, as CSV; no cell runs as a formula or controls a terminal."""
    safe = ([defuse_formula(escape_controls(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows)
    csv.writer(file, lineterminator=end).writerows(safe)


def escape_markdown(text: str) -> str:
    """Return `text` on one line with Markdown and HTML markup escaped, also inside a table cell."""
    folded = escape_controls(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN.sub(r"\\\g<0>", folded)


def make_printable(text: str) -> str:
    """Return text that cannot control a terminal: control characters and text reversals are escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def wrap_text(text: str, width: int, *, num_lines: int) -> str:
    """Return printable text in at most `num_lines` lines of `width` characters; a space for none."""
    lines = textwrap.wrap(make_printable(text), width, max_lines=num_lines, placeholder=" …")
    return "\n".join(lines) or " "


@contextlib.contextmanager
def plain_text_style(**settings: Any) -> Iterator[None]:
    """Let matplotlib draw text in installed fonts and never as a formula; `settings` are further rcParams."""
    import matplotlib
    from matplotlib import font_manager

    present = set(font_manager.get_font_names())
    style: Any = {"font.family": [font for font in _FONTS if font in present], "text.parse_math": False, **settings}
    with matplotlib.rc_context(style):
        yield


def install_extra(extra: str) -> str:
    """Return the command that installs optional packages, "" for the plain ones; the project is on no package index."""
    what = f'".[{extra}]"' if extra else "."
    return f"{name_command('pip')} install -e {what} in the checkout of stepcot_jax"


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line of at most 200 characters; its kind if it has no message."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def shorten(text: str) -> str:
    """Return at most 80 characters of a text that a file holds, for messages."""
    return text if len(text) <= _NUM_SHOWN else f"{text[:_NUM_SHOWN]}…"


def show(value: object) -> str:
    """Return a value that a file holds as Python writes it, shortened, for messages."""
    return shorten(repr(value))


def list_texts(texts: Sequence[str]) -> str:
    """Return the first 26 texts of a list as Python writes them, each shortened, for messages."""
    shown = str([shorten(text) for text in texts[:_MOST_LISTED]])
    return shown if len(texts) <= _MOST_LISTED else f"{shown[:-1]}, and {len(texts) - _MOST_LISTED} more]"
