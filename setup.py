"""Ship `configs/` inside the package, as `stepcot_jax.configs`; pyproject.toml has everything else."""

import sys

from setuptools import find_packages, setup

PACKAGES = find_packages(include=["stepcot_jax", "stepcot_jax.*"])

if "editable_wheel" in sys.argv:
    # With a package_dir of one folder setuptools writes a plain path entry, which comes before a folder `stepcot_jax`
    # in the working directory (a clone of this repository). `configs/` beside the package is found by its path.
    setup(packages=PACKAGES, package_dir={"": "."})
else:
    setup(packages=[*PACKAGES, "stepcot_jax.configs"], package_dir={"stepcot_jax.configs": "configs"})
