"""The pages of the API, one for each module, made while the site is built; and a place for documents without one."""

import ast
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGE = "stepcot_jax"
INDEX = "api/index.md"

_OUTSIDE = re.compile(r"\[([^\]\n]+)\]\(\.\./([^)\s]+)\)")


def find_modules(root: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Name and first line of the docstring of every module that has more than a docstring."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if len(tree.body) > 1:
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            yield name, (ast.get_docstring(tree) or "").partition("\n")[0]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and name them in the navigation."""
    modules = dict(find_modules(pathlib.Path(config.config_file_path).parent))
    groups: dict[str, list[str]] = {}
    for module in modules:
        files.append(File.generated(config, page_of(module), content=f"# `{module}`\n\n::: {module}\n"))
        groups.setdefault(group_of(module), []).append(module)
    files.append(File.generated(config, INDEX, content=write_index(groups, modules)))
    sections: list[Any] = [{group: [page_of(module) for module in members]} for group, members in groups.items()]
    nav = [{"API": [INDEX, *sections]} if entry == {"API": INDEX} else entry for entry in config.nav or []]
    more = sorted(set(find_documents(pathlib.Path(config.docs_dir))) - set(find_listed(nav)))
    config.nav = [*nav, *([{"More": more}] if more else [])]
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files of the repository that are not of the site, where a document links to them."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)


def find_documents(folder: pathlib.Path) -> Iterator[str]:
    """The documents of a folder, without those below it."""
    return (path.name for path in folder.glob("*.md"))


def find_listed(nav: Any) -> Iterator[str]:
    """The documents that a navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, Mapping) else nav:
            yield from find_listed(entry)


def group_of(module: str) -> str:
    """The package that a module is listed under."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else PACKAGE


def page_of(module: str) -> str:
    """Where the page of a module is, below the folder of the documents."""
    return f"api/{module}.md"


def write_index(groups: Mapping[str, list[str]], modules: Mapping[str, str]) -> str:
    """The list of all modules, by package, with the first line of each."""
    lines = ["# API"]
    for group, members in groups.items():
        lines += ["", f"## {group}", "", "| module | what |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {modules[name].replace('|', chr(92) + '|')} |" for name in members]
    return "\n".join(lines) + "\n"
