"""List the commands, or run one: `stepcot COMMAND ...` is the same as `python -m stepcot_jax COMMAND ...`."""

import ast
import difflib
import importlib.util
import pathlib
import platform
import runpy
import sys
from importlib import metadata

from stepcot_jax import __version__
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.extras import find_extra, list_extras, name_package

_HERE = pathlib.Path(__file__).parent
_TRAIN = ("train", "main")  # two names of stepcot_jax.main
_EXTRAS = {"demo": "demo", "sync": "gcs"}
"""Commands of `extras` and the optional dependencies that each needs."""


def find_commands() -> dict[str, str]:
    """Return the module of every command by name: files of `tools/`, and what extras register."""
    tools = sorted((*(_HERE / "tools").glob("[!_]*.py"), *(_HERE / "tools").glob("*/command.py")))
    names = {path.parent.name if path.name == "command.py" else path.stem: path for path in tools}
    names.pop("options")
    modules = {name: ".".join(path.relative_to(_HERE.parent).with_suffix("").parts) for name, path in names.items()}
    modules |= {"train": "stepcot_jax.main"}
    for name, point in list_extras("command").items():
        if name in modules or name in _TRAIN:
            print(
                f"note: {name} of {name_package(point)} is passed over: a built-in command has this name",
                file=sys.stderr,
            )
        else:
            modules[name] = point.value
    return dict(sorted(modules.items()))


def describe(commands: dict[str, str]) -> str:
    """Return the list of commands, each with the first line of its docstring; sources are parsed, not imported."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {_summarise(module)}" for name, module in commands.items()]
    return "\n".join(["usage: stepcot COMMAND ... (help for one: stepcot COMMAND --help)", "", *lines])


def _summarise(module: str) -> str:
    """Return the first line of a module's docstring; of another package's extra, which is not imported, its package."""
    point = next((point for point in list_extras("command").values() if point.value == module), None)
    if point is not None and not module.startswith("stepcot_jax."):
        package = point.value.partition(":")[0].partition(".")[0].strip()
        is_there = package and importlib.util.find_spec(package) is not None
        return f"(of {name_package(point)}{'' if is_there else ', whose module is missing'})"
    path = _HERE.parent.joinpath(*module.split("."))
    source = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0] if source else ""


def _describe_version() -> str:
    """Return the version with those of what computes, read from their metadata: importing JAX takes a second."""
    found = ((name, next(iter(metadata.distributions(name=name)), None)) for name in ("jax", "jaxlib"))
    parts = [*(f"{name} {each.version}" for name, each in found if each), f"Python {platform.python_version()}"]
    return f"stepcot-jax {__version__} ({', '.join(parts)})"


def run(arguments: list[str]) -> int | None:
    """List the commands, or run the first argument as a command with the remaining ones."""
    commands = find_commands()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(describe(commands))
        return None
    name, *rest = arguments
    if name == "--version":
        print(_describe_version())
        return None
    module = "stepcot_jax.main" if name in _TRAIN else commands.get(name)
    if module is None and name in _EXTRAS:
        find_extra("command", name, packages=_EXTRAS[name])  # raises with the command that installs it
    if module is None:
        near = difflib.get_close_matches(name, commands, n=1, cutoff=0.0)
        raise BadInput(f"{name}: no such command; did you mean {near[0]}? (commands: {', '.join(commands)})")
    # A console script lacks the current folder, unlike `python -m`; configs import each other from there.
    here = str(pathlib.Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    sys.argv = [f"stepcot {name}", *rest]
    if not module.startswith("stepcot_jax."):
        extra = find_extra("command", name, packages="")
        if (start := extra if callable(extra) else getattr(extra, "main", None)) is None:
            raise BadInput(f"{name}: {module}, an extra of another package, has no main()")
        code: int | None = start()
        return code
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return None


def main() -> None:
    """Entry point of the console script."""
    run_tool(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
