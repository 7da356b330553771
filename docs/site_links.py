"""Links of the documents that lead out of docs/: to notebooks as links to their pages, to other files as text."""

import re
from typing import Any

_NOTEBOOK = r"\]\({up}notebooks/(\w+)\.ipynb\)"
_OUTSIDE = r"\[([^\]\n]+)\]\({up}([^)\s]+)\)"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links that lead out of the documents; mkdocs calls it for each page."""
    if page.file.src_uri.startswith("notebooks/"):  # its links to ../ are to documents
        return markdown
    depth = page.file.src_uri.count("/")
    up = re.escape("../" * (depth + 1))  # a page in docs/results links to its neighbours above by ../
    linked = re.sub(_NOTEBOOK.format(up=up), rf"]({'../' * depth}notebooks/\1.md)", markdown)
    return re.sub(_OUTSIDE.format(up=up), r"\1 (`\2`)", linked)
