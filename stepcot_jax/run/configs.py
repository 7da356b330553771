"""Config files: find a shipped config by name, and load it or a user's own file."""

import contextlib
import difflib
import importlib.machinery
import importlib.util
import inspect
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from stepcot_jax.host.errors import BadInput

_PACKAGE = pathlib.Path(__file__).parents[1]
# A wheel has the configs inside the package, a checkout at the top level.
SHIPPED = next((path for path in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if path.is_dir()), _PACKAGE)


def shipped_names() -> tuple[str, ...]:
    """Return the names that `--config` accepts without a path."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("[!_]*.py")))


def find_config(name: str) -> pathlib.Path:
    """Return the absolute path of a config.

    Args:
      name: a shipped config such as "quickstart", or the path of a file: anything with a slash or ".py".
    """
    path = pathlib.Path(name)
    names = shipped_names()
    if "/" in name or name.endswith(".py"):
        if path.is_file():
            return path.absolute()
        hint = f"--config={path.stem} is shipped" if path.stem in names else f"shipped configs: {', '.join(names)}"
        raise BadInput(f"{name}: no such config file ({hint})")
    if name not in names:
        if path.is_file():
            return path.absolute()
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        raise BadInput(f"--config={name}: no such config; did you mean {near[0]}? (shipped: {', '.join(names)})")
    return SHIPPED / f"{name}.py"


def load_config(source: str) -> Any:
    """Return what a config's `get_config` returns, usually a `ConfigDict`."""
    name, *argument = source.split(":", 1)
    path = find_config(name)
    loader = importlib.machinery.SourceFileLoader("stepcot_config", str(path))
    spec = importlib.util.spec_from_file_location("stepcot_config", path, loader=loader)
    assert spec is not None  # noqa: S101 - for the type checker: a loader was given
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    try:
        with configs_importable(path):
            spec.loader.exec_module(module)
            if argument and not inspect.signature(module.get_config).parameters:
                raise BadInput(f"--config={source}: {name} takes nothing after a colon")
            return module.get_config(*argument)
    except BadInput:
        raise
    except Exception as error:  # a config is a program, which may raise anything
        line, trace = getattr(error, "lineno", None), error.__traceback__
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(path) else line
            trace = trace.tb_next
        where = name if line is None else f"{name}:{line}"
        reason = " ".join(str(error).split())
        raise BadInput(f"{where}: {type(error).__name__}: {reason} (expected a config with get_config())") from None


@contextlib.contextmanager
def configs_importable(*paths: pathlib.Path) -> Iterator[None]:
    """Let config files import shipped configs (`from configs import base`) from any working directory.

    Args:
      paths: the config files to run. A user's own file finds the modules of the user's folder `configs` first; a
        shipped one finds only shipped modules.
    """
    shipped_only = all(path.parent == SHIPPED for path in paths)
    spec = None if shipped_only else importlib.machinery.PathFinder.find_spec("configs")
    package = types.ModuleType("configs") if spec is None else importlib.util.module_from_spec(spec)
    package.__path__ = [*getattr(package, "__path__", ()), str(SHIPPED)]
    held = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "configs"}
    sys.modules["configs"] = package
    try:
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module(package)
        yield
    finally:
        for name in [*sys.modules]:
            if name.partition(".")[0] == "configs":
                del sys.modules[name]
        sys.modules.update(held)
