"""Links of the documents to files of the repository that are not part of the site: shown as text with the path."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]\n]+)\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links that lead out of the documents; mkdocs calls it for each page."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)
