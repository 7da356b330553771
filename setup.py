"""Ship `configs/` inside the package, as `stepcot_jax.configs`, and make the long description of README.md.

pyproject.toml has everything else.
"""

import pathlib
import re
import sys
import tomllib

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
PACKAGES = find_packages(include=["stepcot_jax", "stepcot_jax.*"])


def describe() -> str:
    """Return README.md with addresses of the tagged files for its relative links, which an index cannot follow."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
    source = (ROOT / "stepcot_jax" / "__init__.py").read_text("utf-8")
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]

    def lead(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}{address}/{kind}/v{version}/{link[2]}"

    readme = (ROOT / "README.md").read_text("utf-8")
    return re.sub(r"(!?\[[^\[\]]*\]\()(?!https?:|mailto:|#)([^()\s]+)(?=\))", lead, readme)


metadata = {"long_description": describe(), "long_description_content_type": "text/markdown"}
if "editable_wheel" in sys.argv:
    # With a package_dir of one folder setuptools writes a plain path entry, which comes before a folder `stepcot_jax`
    # in the working directory (a clone of this repository). `configs/` beside the package is found by its path.
    setup(packages=PACKAGES, package_dir={"": "."}, **metadata)
else:
    setup(packages=[*PACKAGES, "stepcot_jax.configs"], package_dir={"stepcot_jax.configs": "configs"}, **metadata)
