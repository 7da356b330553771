"""Ship `configs/` inside the package, as `stepcot_jax.configs`; pyproject.toml has everything else."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["stepcot_jax", "stepcot_jax.*"]), "stepcot_jax.configs"],
    package_dir={"stepcot_jax.configs": "configs"},
)
