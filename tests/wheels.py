"""Wheels of the checkout, and environments that hold nothing but one and chosen libraries."""

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import venv
import zipfile

ROOT = pathlib.Path(__file__).parents[1]


def build_wheel(folder: pathlib.Path, *, kind: str = "wheel", name: str = "source") -> pathlib.Path:
    """Build a wheel (or an editable one) of a copy of the package, or an sdist of one of the checkout."""
    source = folder / name
    more = ("benchmarks", "docs", "launch", "notebooks", "tests") if kind == "sdist" else ()
    for part in ("stepcot_jax", "configs", *more):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and (more or path.name in ("pyproject.toml", "setup.py", "README.md", "LICENSE")):
            shutil.copy(path, source)
    build = f"import setuptools.build_meta as b; b.build_{kind}('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    return next(folder.glob("*.tar.gz" if more else "*.whl"))


def make_environment(folder: pathlib.Path) -> pathlib.Path:
    """Install a wheel in a new environment without other libraries; return its site-packages."""
    venv.create(folder / "env", with_pip=False)
    site = next((folder / "env" / "lib").glob("*/site-packages"))
    with zipfile.ZipFile(build_wheel(folder)) as archive:
        archive.extractall(site)
    return site


def link_libraries(site: pathlib.Path, names: list[str]) -> set[str]:
    """Link installed libraries, and those that they require, into an environment; return the names of all."""
    linked, waiting = set(), list(names)
    while waiting:
        if (name := waiting.pop()) in linked:
            continue
        linked.add(name)
        library = importlib.metadata.distribution(name)
        for part in {file.parts[0] for file in library.files} - {"..", "__pycache__"}:
            (site / part).symlink_to(library.locate_file(part))
        waiting += [re.match(r"[\w.-]+", line)[0] for line in library.requires or () if "extra ==" not in line]
    return linked
