"""List the tools, or run one: `stepcot TOOL ...` is `python -m stepcot_jax.TOOL ...`."""

import ast
import difflib
import pathlib
import runpy
import sys

from stepcot_jax import __version__
from stepcot_jax.host.errors import BadInput, run_tool


def find_tools() -> dict[str, str]:
    """Every module of the package that runs as a program, with the first line of its docstring.

    The sources are parsed and not imported, which keeps the listing quick and in step with the modules.
    """
    here = pathlib.Path(__file__).parent
    modules = {path.stem: path for path in here.glob("[!_]*.py")}
    modules |= {path.parent.name: path for path in here.glob("*/__main__.py")}
    tools = {}
    for name, path in sorted(modules.items()):
        source = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in source:
            tools[name] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return tools


def describe(tools: dict[str, str]) -> str:
    """What is printed when no tool is named."""
    width = max(map(len, tools))
    lines = [f"  {name:<{width}}  {line}" for name, line in tools.items()]
    return "\n".join(["usage: stepcot TOOL ... (stepcot TOOL --help tells more)", "", *lines])


def run(arguments: list[str]) -> None:
    """List the tools, or run the one named first with the arguments after it.

    Raises:
      BadInput: there is no such tool.
      SystemExit: the tool's exit code.
    """
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
        raise BadInput(f"{name}: found no such tool, accepted are {', '.join(tools)}; nearest: {near[0]}")
    # As `python -m` does, where a console script would not: configs import one another from the current folder.
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
