"""Pages of the site made from notebooks/*.ipynb with their stored outputs; mkdocs calls `on_files`. Nothing is run."""

import pathlib
from typing import Any

from mkdocs.structure.files import File, Files

NOTEBOOKS = pathlib.Path(__file__).parents[1] / "notebooks"


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Add a Markdown page for each notebook, and its pictures."""
    import nbconvert

    exporter = nbconvert.MarkdownExporter()
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        folder = f"{path.stem}_files"
        names = {"unique_key": path.stem, "output_files_dir": folder}
        body, resources = exporter.from_filename(str(path), resources=names)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_relink(body)))
        for name, content in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def _relink(body: str) -> str:
    """Return the text with links as they are on the site: to pages of documents and of other notebooks."""
    return body.replace("](../docs/", "](../").replace(".ipynb)", ".md)").replace("![png](", "![output](")
