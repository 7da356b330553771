"""Links of the documents that lead out of docs/: to notebooks as links to their pages, to other files as text."""

import re
from typing import Any

_NOTEBOOK = re.compile(r"\]\(\.\./notebooks/(\w+)\.ipynb\)")
_OUTSIDE = re.compile(r"\[([^\]\n]+)\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links that lead out of the documents; mkdocs calls it for each page."""
    if page.file.src_uri.startswith("notebooks/"):  # its links to ../ are to documents
        return markdown
    return _OUTSIDE.sub(r"\1 (`\2`)", _NOTEBOOK.sub(r"](notebooks/\1.md)", markdown))
