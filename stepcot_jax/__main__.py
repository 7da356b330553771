"""List the tools, or run one: `stepcot TOOL ...` is `python -m stepcot_jax.TOOL ...`."""

import ast
import difflib
import pathlib
import runpy
import sys

from stepcot_jax import __version__
from stepcot_jax.host.errors import BadInput, run_tool


def find_tools() -> dict[str, str]:
    """Return every module of the package that runs as a program, with the first line of its docstring.

    Sources are parsed instead of imported, so that listing takes milliseconds.
    """
    here = pathlib.Path(__file__).parent
    tools = {}
    for path in (*here.glob("[!_]*.py"), *here.glob("*/**/__main__.py")):
        source = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in source:
            parts = path.relative_to(here).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__main__" else parts)
            tools[name] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return dict(sorted(tools.items()))


def describe(tools: dict[str, str]) -> str:
    """Return the listing of tools."""
    width = max(map(len, tools))
    lines = [f"  {name:<{width}}  {line}" for name, line in tools.items()]
    return "\n".join(["usage: stepcot TOOL ... (help for one: stepcot TOOL --help)", "", *lines])


def run(arguments: list[str]) -> None:
    """List the tools, or run the first argument as a tool with the remaining ones."""
    tools = find_tools()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(describe(tools))
        return
    name, *rest = arguments
    if name == "--version":
        print(f"stepcot-jax {__version__}")
        return
    if name not in tools:
        near = difflib.get_close_matches(name, tools, n=1, cutoff=0.0)
        raise BadInput(f"{name}: no such tool; did you mean {near[0]}? (tools: {', '.join(tools)})")
    # As `python -m` does and a console script does not: configs import each other from the current folder.
    here = str(pathlib.Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    sys.argv = [name, *rest]
    runpy.run_module(f"stepcot_jax.{name}", run_name="__main__", alter_sys=True)


def main() -> None:
    """Entry point of the console script."""
    run_tool(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
