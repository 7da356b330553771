"""Docstrings as the site shows them: doctests as code, and brackets that are no links."""

import re
from typing import Any

import griffe

_FENCE = re.compile(r"(`+[^`]*`+)")
_TWO_BRACKETS = re.compile(r"\](\s?)\[")


class AsMarkdown(griffe.Extension):
    """Rewrites the docstrings of a package after it was loaded; the sources stay as they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring; griffe calls it."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(docstring: str) -> str:
    r"""A docstring that Markdown shows as it is meant.

    >>> to_markdown("[--a] [--b] and `[c] [d]`")
    '[--a] \\[--b] and `[c] [d]`'
    """
    lines, in_doctest, in_code, after_blank = [], False, False, True
    for line in docstring.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if not in_doctest and line.lstrip().startswith(">>>"):
            lines += ["", f"{indent}```pycon"]
            in_doctest, fence = True, f"{indent}```"
        elif in_doctest and not line.strip():
            lines.append(fence)
            in_doctest = False
        # Markdown's code: indented, and not the continuation of a paragraph.
        in_code = len(indent) >= 4 and (in_code or after_blank)
        lines.append(line if in_doctest or in_code else _separate_brackets(line))
        after_blank = not line.strip()
    if in_doctest:
        lines.append(fence)
    return "\n".join(lines)


def _separate_brackets(line: str) -> str:
    """Two pairs of brackets in a row, which Markdown would take for a link."""
    parts = _FENCE.split(line)
    return "".join(part if place % 2 else _TWO_BRACKETS.sub(r"]\1\\[", part) for place, part in enumerate(parts))
